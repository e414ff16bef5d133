"""Files that are either whole or not there."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from generalist.core.errors import RunError


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename: a crash or a full disk leaves what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"could not write {path}: {error.strerror or error}; what was there before is unharmed"
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
