"""A real browser, driven through the DevTools protocol over a pair of pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Seconds to wait for anything.
PATIENCE = 20.0


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, program, profile):
        to_browser, own_out = os.pipe()
        own_in, from_browser = os.pipe()
        command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # the browser reads commands from descriptor 3 and answers on 4
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.reader, self.writer, self.unread = own_in, os.fdopen(own_out, "wb"), bytearray()
        self.numbers = itertools.count(1)
        self.session = None
        self.events = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self):
        self.session = None
        self.send("Browser.close")
        self.process.wait(PATIENCE)
        os.close(self.reader)
        self.writer.close()

    def send(self, method, **parameters):
        """Answer to a command; events that come first are kept."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        self.writer.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.reader], [], [], PATIENCE)
            assert ready, f"no answer from the browser within {PATIENCE} s"
            piece = os.read(self.reader, 1 << 20)
            assert piece, "the browser has gone"
            self.unread += piece
        message, _, rest = bytes(self.unread).partition(b"\0")
        self.unread = bytearray(rest)
        return json.loads(message)

    def open(self, path, *, width=1280, height=900, dark=False, touch=False, ratio=1):
        self.events.clear()
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", features=[theme, still])
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=ratio,
            mobile=touch,
        )
        self.send("Page.navigate", url="about:blank")  # else the same address is not loaded again
        self.send("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.settle()

    def run(self, code):
        """Value of an expression; promises are awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition):
        until = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < until, f"not within {PATIENCE} s: {condition}"
            time.sleep(0.02)

    def settle(self):
        """Until what was asked for is painted."""
        frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.run(frame + ".then(() => true)")

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def press(self, key, code=0, text=""):
        more = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", **more)
        self.settle()

    def type(self, text):
        self.send("Input.insertText", text=text)
        self.settle()

    def box(self, selector):
        """Left, top, width and height of an element in the window."""
        return self.run(
            f"(({{left, top, width, height}}) => [left, top, width, height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def screenshot(self, *, box=None):
        """PNG of the window, or of a box in it."""
        options = {}
        if box:
            clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
            clip["x"] += self.run("scrollX")
            clip["y"] += self.run("scrollY")
            options["clip"] = clip
        data = self.send("Page.captureScreenshot", format="png", **options)["data"]
        return base64.b64decode(data)

    def troubles(self):
        """Errors of scripts, lines on the console, broken policies and dialogs so far."""
        self.settle()
        kinds = (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )
        return [event for event in self.events if event.get("method") in kinds]

    def requests(self):
        """Addresses that the page asked for, beside what it holds itself."""
        self.settle()
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "blob:", "about:"))]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        if os.environ.get("CKM_REQUIRE_BROWSER") == "1":
            pytest.fail(f"CKM_REQUIRE_BROWSER=1, but none of {', '.join(NAMES)} is installed")
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
