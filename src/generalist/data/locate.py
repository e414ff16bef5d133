"""Where the files of a dataset are, and what is said when they are not there."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from generalist.core.errors import UserError
from generalist.core.files import user_path


class MissingData(UserError):
    """The files of a dataset are not there; a download may help."""


class Layout(NamedTuple):
    """A folder and the files it should have."""

    folder: Path
    files: Sequence[str]


def data_root(root: Path | str | None) -> Path:
    """The given root, else $GENERALIST_DATA, else the user's cache."""
    if root is not None:
        return user_path(root)
    return user_path(os.environ.get("GENERALIST_DATA") or "~/.cache/generalist")


def locate(name: str, layouts: Sequence[Layout]) -> list[Path]:
    """The files of the first complete layout, each as it is named or with .gz."""
    missing: list[tuple[Layout, list[str]]] = []
    for layout in layouts:
        found = [_present(layout.folder / file) for file in layout.files]
        paths = [path for path in found if path is not None]
        if len(paths) == len(layout.files):
            return paths
        missing.append((layout, [file for file, path in zip(layout.files, found, strict=True) if path is None]))
    nearest, lacking = min(missing, key=lambda entry: len(entry[1]) - len(entry[0].files))
    others = [str(layout.folder) for layout, _ in missing if layout.folder != nearest.folder]
    also = f" (nor a whole copy in {', '.join(dict.fromkeys(others))})" if others else ""
    raise MissingData(
        f"{name}: no {', '.join(lacking)} in {nearest.folder}{also}; "
        f"--download (download=True) fetches it, or --root or GENERALIST_DATA says which folder has it"
    )


def _present(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return next((candidate for candidate in (path, packed) if candidate.is_file()), None)
