"""A headless Chromium, driven through chromedriver's own protocol."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser here: install Debian's chromium and chromium-driver to run this"
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars",
]  # fmt: skip


KEYS = {"ArrowRight": 39, "ArrowLeft": 37}
"""Keys by their virtual codes."""


class Browser:
    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        _ask("POST", f"{self._base}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function returns, in the page."""
        return _ask("POST", f"{self._base}/execute/sync", {"script": script, "args": list(arguments)})

    def command(self, name: str, **parameters: Any) -> Any:
        """One of the DevTools."""
        return _ask("POST", f"{self._base}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def press(self, key: str) -> None:
        """A key, on what has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Messages of the console (`browser`) or events of the network (`performance`) since the last call."""
        found: list[dict[str, Any]] = _ask("POST", f"{self._base}/se/log", {"type": kind})
        return found

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        picture = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))


def _ask(method: str, address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from None


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, closed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address)
        chrome = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        made = _ask("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
        try:
            yield Browser(address, made["sessionId"])
        finally:
            _ask("DELETE", f"{address}/session/{made['sessionId']}")
    finally:
        driver.terminate()
        driver.wait(10)


def _wait(address: str) -> None:
    for _ in range(300):
        try:
            if _ask("GET", f"{address}/status")["ready"]:
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("chromedriver did not start")
