"""Studies made small, and a PostgreSQL server for them."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TINY = {
    "training.epochs": 2,
    "training.batch_size": 32,
    "data.limit": 40,
    "model.width": 2,
    "validation.images": 8,
    "validation.steps": 1,
    "validation.every_epochs": 100,
    "select": "last",
}
"""Recipe fields that make a digits run take a fraction of a second."""
TINY_SETS = [part for field, value in TINY.items() for part in ("--set", f"{field}={value}")]


def tiny_suite(folder: Path) -> str:
    """The file of a suite that takes no time."""
    path = folder / "tiny.yaml"
    path.write_text("attacks: [{attack: pgd, steps: 1}]\n")
    return str(path)


def small_study(**changes: Any) -> dict[str, Any]:
    """A study of two rows, as a user would write it."""
    return {
        "name": "small",
        "description": "two rows",
        "recipe": "digits-generalist-t",
        "set": TINY,
        "variants": [{"name": "c = {}", "grid": {"mixing.every_epochs": [1, 2]}}],
        "seeds": 1,
        "suite": "pgd20",
        "images": 8,
        "figure": {"kind": "lines", "x": "mixing.every_epochs"},
        **changes,
    }


def postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A server of its own, as a user without privileges (PostgreSQL refuses root); the URL of its database."""
    binaries = postgres_binaries()
    assert binaries is not None
    data = folder / "postgres"
    data.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = next(entry for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody"))
        shutil.chown(data, nobody.pw_uid, nobody.pw_gid)
        for place in (folder, *folder.parents):
            place.chmod(place.stat().st_mode | 0o011) if place.owner() == "root" and place != Path("/") else None
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(binaries / command[0]), *command[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=data,
            **user,
        )

    assert run("initdb", "-D", str(data / "db"), "-U", "tester", "--auth=trust", "--no-sync").wait(60) == 0
    options = ["-D", str(data / "db"), "-p", str(port), "-k", str(data), "-h", "127.0.0.1", "-F"]
    server = run("postgres", *options)
    try:
        for _ in range(300):
            if run("pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q").wait() == 0:
                break
            time.sleep(0.1)
        yield f"postgresql+pg8000://tester@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # at once, whoever is connected
        server.wait(30)
