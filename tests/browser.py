"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, package or port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)

# The browser reads commands from descriptor 3 and writes answers to 4.
_WITH_PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page of its own browser, and all that it logged, threw and requested from the network."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.size = width, height
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        size = f"--window-size={self.size[0]},{self.size[1]}"
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", size]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        # Numbers that are not among those that are overwritten.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WITH_PIPES, *map(str, ends), *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, from_write, *ends):
            os.close(end)
        self._session: str | None = None
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._to, content) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, file: Path) -> None:
        """Load a file and wait until the page's script says that all is drawn."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.wait_for("document.readyState === 'complete' && document.documentElement.dataset.ready === 'true'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 100.0) -> None:
        """Ask until a condition is true."""
        end = time.monotonic() + timeout_s
        while not self.js(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never true: {condition}; errors: {self.errors}"
            time.sleep(0.02)

    def press(self, key: str, text: str | None = None, modifiers: int = 0) -> None:
        """Press a key, as a person does: "Tab", "Enter", "Escape", "ArrowDown", or a character."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, " ": 32}.get(key, 0)
        if not code and len(key) == 1 and key.isalnum():
            code = ord(key.upper())
        if text is None and (len(key) == 1 or key == "Enter"):
            text = "\r" if key == "Enter" else key
        down = {
            "type": "keyDown" if text else "rawKeyDown",
            "key": key,
            "windowsVirtualKeyCode": code,
            "modifiers": modifiers,
        }
        self.call("Input.dispatchKeyEvent", **down, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def type(self, text: str) -> None:
        for character in text:
            self.press(character)

    def point(self, selector: str, across: float, down: float, click: bool = False) -> None:
        """Move the mouse over an element, to a share of its width and height, and click there."""
        box = f"document.querySelector({selector!r})"
        self.js(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y, width, height = self.js(f"(r => [r.x, r.y, r.width, r.height])({box}.getBoundingClientRect())")
        at = {"x": x + width * across, "y": y + height * down}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def resize(self, width: int, height: int, scale: float = 1.0, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def prefer(self, **features: str) -> None:
        """Set media features: ``prefers_color_scheme="dark"``."""
        rows = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=rows)

    def screenshot(self, file: Path, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        content, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(content)
        params: dict[str, Any] = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(
                    str(params["exceptionDetails"].get("exception", params["exceptionDetails"]).get("description"))
                )
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case _:
                pass
        return message
