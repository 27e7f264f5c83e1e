"""A headless Chromium, driven over a pair of pipes by its DevTools protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")

CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page, with a record of its requests and errors.

    Attributes:
        requests: addresses of every request, in order.
        complaints: console errors, exceptions, and refusals by the browser.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        assert CHROMIUM is not None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = " ".join([*FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"])
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {flags} about:blank 3<&{theirs_in} 4>&{theirs_out}', CHROMIUM],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._count, self._buffer, self._session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)  # ends the browser, also behind a wrapper script
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """One call of the protocol, and its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression of the page, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 30) -> Any:
        """The value of an expression, as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, (script, self.complaints, self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def visit(self, address: str) -> None:
        """Open a page, and wait until it has loaded."""
        self.call("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press a key that writes nothing; modifier 2 is Ctrl."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **pressed)

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            assert chunk, "the browser ended, or sent nothing for a minute"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        details = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "assert", "warning"):
                self.complaints.append(json.dumps(details["args"])[:500])
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(details["exceptionDetails"])[:500])
        return message
