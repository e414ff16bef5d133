"""Downloads, against a server on this machine."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_data import pickled, random_images

from generalist.core.errors import UserError
from generalist.data import SOURCES, Source, fetch, load_dataset
from generalist.data.download import unpack

BODY = random_images(200_000).tobytes()
SUM = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; breaks off after `cuts[0]` bytes, then `cuts[1]`, ...; fails first with `failures`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": BODY}
        self.cuts: list[int] = []
        self.failures: list[int] = []
        self.ranges = True
        self.seen: list[tuple[str, str | None]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.seen.append((self.path, wanted))
        body = self.server.files.get(self.path)
        if self.server.failures or body is None:
            self.send_error(self.server.failures.pop(0) if self.server.failures else 404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        part = body[start:]
        part = part[: self.server.cuts.pop(0)] if self.server.cuts else part
        self.server.sent += len(part)
        self.wfile.write(part)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, path: Path, **options: object) -> Path:
    return fetch(f"{server.url}/file", path, pause=0.0, **options)  # type: ignore[arg-type]


def test_whole(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = get(server, tmp_path / "new" / "file", sha256=SUM, md5=hashlib.md5(BODY).hexdigest())
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert capsys.readouterr().err == "downloading file\n"
    get(server, path, sha256=SUM)
    assert len(server.seen) == 1  # what is there and right is not fetched again


def test_interrupted_then_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [50_000]
    with pytest.raises(UserError, match=r"150000 bytes are missing.*try again to go on"):
        get(server, tmp_path / "file", sha256=SUM, tries=1)
    assert not (tmp_path / "file").exists()
    get(server, tmp_path / "file", sha256=SUM, tries=1)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.seen == [("/file", None), ("/file", "bytes=50000-")]
    assert server.sent == len(BODY)


def test_broken_connections_are_tried_again(server: Server, tmp_path: Path) -> None:
    server.cuts, server.failures = [10_000, 20_000], [503]
    get(server, tmp_path / "file", sha256=SUM)
    assert (tmp_path / "file").read_bytes() == BODY
    assert [wanted for _, wanted in server.seen] == [None, None, "bytes=10000-", "bytes=30000-"]


def test_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [50_000]
    get(server, tmp_path / "file", sha256=SUM)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.sent == 50_000 + len(BODY)


def test_a_part_that_is_whole_already(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY)
    get(server, tmp_path / "file", sha256=SUM)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.sent == 0


def test_a_part_longer_than_the_file_is_begun_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY + b"more")
    get(server, tmp_path / "file", sha256=SUM)
    assert (tmp_path / "file").read_bytes() == BODY


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wrong checksum") as error:
        get(server, tmp_path / "file", md5="0" * 32)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_not_found_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="404"):
        fetch(f"{server.url}/other", tmp_path / "file")
    assert len(server.seen) == 1


def test_no_server(server: Server, tmp_path: Path) -> None:
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"cannot download .* 2 tries"):
        fetch(f"{url}/file", tmp_path / "file", tries=2, pause=0.0, progress=False)


def test_only_the_web(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="http"):
        fetch("file:///etc/hostname", tmp_path / "file")


def tarball(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def test_load_dataset_downloads_and_unpacks(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(20, 3072)
    pickled(tmp_path / "batch", {b"data": images, b"labels": [n * 3 % 10 for n in range(20)]})
    content = (tmp_path / "batch").read_bytes()
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    archive = tarball({f"cifar-10-batches-py/{name}": content for name in names})
    server.files["/mirror/cifar10/tiny.tar.gz"] = archive
    source = Source("http://unused.invalid", "tiny.tar.gz", hashlib.md5(archive).hexdigest(), archive=True)
    monkeypatch.setitem(SOURCES, "cifar10", [source])
    monkeypatch.setenv("GENERALIST_MIRROR", f"{server.url}/mirror/")
    root = tmp_path / "root"
    with pytest.raises(UserError, match="--download"):
        load_dataset("cifar10", root=root)
    assert not server.seen  # no network without being asked
    data = load_dataset("cifar10", root=root, download=True)
    assert len(data.train) + len(data.validation) == 100
    assert np.array_equal(data.test.read(torch.arange(20)).reshape(20, -1), images)
    load_dataset("cifar10", root=root, download=True)
    assert len(server.seen) == 1
    assert sorted(p.name for p in root.iterdir()) == ["cifar-10-batches-py", "tiny.tar.gz"]


def test_load_dataset_downloads_separate_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mnist_files: Callable
) -> None:
    mnist_files(tmp_path / "origin", packed=True)
    sources = []
    for source in SOURCES["mnist"]:
        body = (tmp_path / "origin" / source.file).read_bytes()
        server.files[f"/mnist/{source.file}"] = body
        sources.append(source._replace(md5=hashlib.md5(body).hexdigest()))
    monkeypatch.setitem(SOURCES, "mnist", sources)
    monkeypatch.setenv("GENERALIST_MIRROR", server.url)
    assert len(load_dataset("mnist", root=tmp_path, download=True).test) == 20
    assert (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").is_file()


def test_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "bad.tar.gz").write_bytes(tarball({"../escaped": b"x"}))
    with pytest.raises(UserError, match="cannot unpack"):
        unpack(root / "bad.tar.gz", root)
    assert not list(tmp_path.rglob("escaped"))


def test_damaged_archive(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(tarball({"a": BODY})[:5000])
    with pytest.raises(UserError, match="cannot unpack"):
        unpack(path, tmp_path)
    assert not (tmp_path / "a").exists()
