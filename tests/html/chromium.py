"""A real browser, Chromium without a window, driven over a pair of pipes.

The DevTools protocol: messages of JSON, each ended by a NUL; see ``--remote-debugging-pipe``.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 60.0


def find():
    """Return the browser's program, None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """A page of a browser; a context manager."""

    def __init__(self, program, profile):
        self.events = []
        self._unread = b""
        self._number = 0
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads from 3 and writes to 4. The shell puts them there, in a way that works
        # whatever the numbers of the pipes are.
        line = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        options = (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        )
        self._process = subprocess.Popen(
            ["bash", "-c", line, program, *options],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        """Send a command and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, *, scheme="light"):
        """Show a file and wait until it is there."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **screen)
        colours = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[colours])
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._receive())

    def happened(self, method):
        """Return what was told under a name since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def value(self, expression):
        """Return the value of an expression of JavaScript in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path):
        """Save a picture of the whole page, PNG."""
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self):
        """Return the page as it is printed."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
