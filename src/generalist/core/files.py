"""Files that are either whole or not there, and that show when they were changed."""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from generalist.core.errors import RunError, UserError, shown

LONGEST_NAME = 100
"""Bytes of a name that files are called by; systems allow 255, and endings are added to it."""
SEAL = "digest"
"""The field of a sealed mapping that has the digest of all its other fields."""


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename: a crash or a full disk leaves what was there before."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe, not to be replaced by a file
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
        with suppress(OSError):
            temporary.unlink()
        raise RunError(
            f"could not write {path}: {error.strerror or error}; what was there before is unharmed"
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Temporary files that a killed process left anywhere below the folder; those of a living one stay."""
    for path in folder.rglob(".*.tmp"):
        owner = path.name.removesuffix(".tmp").rpartition(".")[2]
        if owner.isdecimal() and not process_lives(int(owner)):
            path.unlink(missing_ok=True)


def process_lives(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(errors="backslashreplace"))  # a path may hold bytes that are no UTF-8


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fingerprint(value: Any) -> str:
    """The digest of a JSON value, whatever the order of its keys."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with a digest of itself, as it will be read back from JSON."""
    plain = json.loads(json.dumps(dict(content)))
    return {**plain, SEAL: fingerprint(plain)}


def seal_holds(content: Mapping[str, Any]) -> bool | None:
    """Whether a mapping is as it was sealed; None where it was never sealed (an older version wrote it)."""
    if SEAL not in content:
        return None
    rest = {key: value for key, value in content.items() if key != SEAL}
    return bool(content[SEAL] == fingerprint(rest))


def user_path(given: str | Path) -> Path:
    """A path that a user wrote, with ~ expanded, or one line saying why there cannot be such a file."""
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except RuntimeError:
        raise UserError(f"{shown(str(given))}: there is no such user's home; write the path out") from None
    except ValueError:  # a NUL character, or one that the file system's encoding lacks
        raise UserError(f"{shown(str(given))} cannot be a path") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES):
            raise UserError(f"{shown(str(given))} cannot be a path: {error.strerror}") from None
    return path


def file_name(given: Any, what: str) -> str:
    """A name that files are called by: one plain part of a path."""
    name = given if isinstance(given, str) else ""
    if not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME or not name.isprintable() or set(name) & set("/\\:$"):
        name = ""
    if not name or not (name[0].isalnum() or name[0] == "_"):
        raise UserError(
            f"{what} is given to files: 1 to {LONGEST_NAME} printable characters without / \\ : $"
            f" the first a letter, a digit or _, got {shown(given)}"
        )
    return name


def read_text(path: Path) -> str:
    """A text file in UTF-8, whatever the locale says."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not UTF-8 text") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a mapping."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not readable JSON") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds a {type(value).__name__}, not a mapping")
    return value
