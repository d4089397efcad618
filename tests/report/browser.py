"""A headless Chromium, driven through its debugging pipe: no package is needed."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")


def find_browser() -> str | None:
    """The browser that CHROMIUM names, or one on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.read = write, read
        self.numbers, self.rest = itertools.count(1), b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def message(self) -> dict[str, Any]:
        """The next message of the browser."""
        while b"\0" not in self.rest:
            some = os.read(self.read, 1 << 20)
            assert some, "the browser has closed its pipe"
            self.rest += some
        first, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def open(
        self, path: Path, width: int, height: int, *, dark: bool = False, phone: bool = False
    ) -> None:
        """Open a file in a window of that size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)  # fmt: skip
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        code = f"""new Promise((done, fail) => {{ let n = 0; const look = () => {{
            try {{ if ({condition}) return done(true); }} catch (error) {{}}
            if (++n > 400) return fail(new Error("never: " + {json.dumps(condition)}));
            setTimeout(look, 25); }}; look(); }})"""
        self.evaluate(code)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        made = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the first element of a selector, by the mouse."""
        where = f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
        where += "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        x, y = self.evaluate(f"{where} return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def problems(self) -> list[str]:
        """Errors of scripts, messages on the console, and requests that left the page."""
        found = []
        for event in self.events:
            method, params = event.get("method", ""), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(params)[:400])
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "about:", "blob:", "data:")):
                    found.append(url)
        return found


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start a browser, and end it."""
    down, write = os.pipe()
    read, up = os.pipe()
    # The browser reads commands at 3 and answers at 4.
    line = f'exec "$0" "$@" 3<&{down} 4>&{up}'
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-dev-shm-usage", "--single-process",
               "--no-zygote", "--remote-debugging-pipe"]  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            ["bash", "-c", line, path, *options, f"--user-data-dir={home}"],
            pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(down)
        os.close(up)
        try:
            yield Browser(write, read)
        finally:
            process.kill()
            process.wait()
            os.close(write)
            os.close(read)
