"""Fetching files: resumed where they stopped, checked, and put in place whole. The only code that uses the network."""

import hashlib
import os
import ssl
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from generalist.core.errors import UserError

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_TRANSIENT = (408, 425, 429)  # of the client errors, those that another try can mend


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    progress: bool = True,
    tries: int = 5,
    pause: float = 1.0,
) -> Path:
    """The file at url in path; a whole one that is there already is kept, a part of one is gone on with."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"cannot download {url!r}; the address must start with http:// or https://")
    if path.is_file() and _matches(path, sha256=sha256, md5=md5):
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _reporter(path.name, shown=progress) as report:
            _fetch_part(url, part, report, tries=tries, pause=pause)
        if not _matches(part, sha256=sha256, md5=md5):
            part.unlink()
            raise UserError(
                f"{url} is not the file it should be (wrong checksum); it was deleted, try again or elsewhere"
            )
        os.replace(part, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror or error}); free some space, or give another folder with --root"
        ) from None
    return path


def unpack(archive: Path, root: Path) -> None:
    """A tar archive into root; every file appears there whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=root) as scratch, tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
            for path in [path for path in Path(scratch).rglob("*") if path.is_file()]:
                target = root / path.relative_to(scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"cannot unpack {archive} ({error}); delete it and download it again") from None


def _matches(path: Path, *, sha256: str | None, md5: str | None) -> bool:
    for algorithm, wanted in (("sha256", sha256), ("md5", md5)):
        if wanted is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, algorithm).hexdigest() != wanted.lower():
                    return False
    return True


Report = Callable[[int, int | None], None]
"""(bytes so far, bytes in all if known)."""


def _fetch_part(url: str, part: Path, report: Report, *, tries: int, pause: float) -> None:
    reason = ""
    for attempt in range(tries):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            short = _receive(url, part, report)
            if not short:
                return
            reason = f"{short} bytes are missing"
        except HTTPError as error:
            if error.code < 500 and error.code not in _TRANSIENT:
                raise UserError(f"cannot download {url}: the server says {error.code} {error.reason}") from None
            reason = f"the server says {error.code} {error.reason}"
        except (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
    raise UserError(f"cannot download {url} ({reason}, {tries} tries); what has arrived is kept, try again to go on")


def _receive(url: str, part: Path, report: Report) -> int:
    """Append what is missing to part; how many bytes still are, when the server breaks off."""
    have = part.stat().st_size if part.is_file() else 0
    request = Request(url, headers={"User-Agent": "generalist", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        response: HTTPResponse = urlopen(request, timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        # nothing after what we have: it is whole, or it is of another file and is begun again
        if error.headers.get("Content-Range") != f"bytes */{have}":
            part.unlink()
            return _receive(url, part, report)
        return 0
    with response:
        resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            report(have, total)
            while block := response.read(_BLOCK):
                file.write(block)
                have += len(block)
                report(have, total)
    return total - have if total is not None else 0


@contextmanager
def _reporter(name: str, *, shown: bool) -> Iterator[Report]:
    """A bar on a terminal, one plain line elsewhere."""
    if not shown:
        yield lambda done, total: None
    elif not sys.stderr.isatty():
        print(f"downloading {name}", file=sys.stderr, flush=True)
        yield lambda done, total: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
