"""A folder to a model hub, where huggingface_hub is installed. Nothing else in this package sends anything."""

import re
from pathlib import Path
from typing import Any

from generalist.core.errors import RunError, UserError, shown
from generalist.core.extras import import_extra
from generalist.core.user_code import first_line

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def check_push(repository: str) -> Any:
    """The hub's package, once the name is one that a hub takes; before anything long begins."""
    if not _REPOSITORY.fullmatch(repository):
        raise UserError(f"a repository of a hub is called user/name, got {shown(repository)}")
    return import_extra("huggingface_hub", extra="hub", needed_by="pushing to a hub")


def push_folder(folder: Path, repository: str) -> str:
    """Upload the folder; a repository that is not there yet is made, private. Returns its address."""
    hub = check_push(repository)
    try:
        api = hub.HfApi()
        address = api.create_repo(repo_id=repository, repo_type="model", private=True, exist_ok=True)
        api.upload_folder(
            folder_path=str(folder), repo_id=repository, repo_type="model", commit_message="Model with its card"
        )
    except Exception as error:
        raise RunError(
            f"{folder} is written, but was not pushed to {repository}: {type(error).__name__}: {first_line(error)}"
        ) from error
    return str(address)
