# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by its DevTools protocol over a pipe: no port, no other package."""

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = "chromium"
LIMIT_S = 120  # turns a hang into a failure
PHONE = (390, 844)  # pixels
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


class Browser:
    """A browser with an empty profile. Chromium reads commands at descriptor 3 and answers at 4."""

    def __init__(self, profile: Path) -> None:
        (read, self._commands), (self._answers, write) = os.pipe(), os.pipe()
        line = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *line],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._calls, self._received = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Returns the result of a command. Events that come before it are kept."""
        self._calls += 1
        command = {"id": self._calls, "method": method, "params": params}
        if session is not None:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._read()).get("id") != self._calls:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not select.select([self._answers], [], [], LIMIT_S)[0]:
                raise TimeoutError(f"Chromium says nothing for {LIMIT_S} s")
            if not (data := os.read(self._answers, 1 << 16)):
                raise RuntimeError("Chromium has ended")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """Ends the browser."""
        self.call("Browser.close")
        self._process.wait(LIMIT_S)
        os.close(self._commands)
        os.close(self._answers)


class Page:
    """A tab with a page.

    Args:
        browser: Opens it.
        url: The page's address.
        size: Width and height in pixels. A phone's also has touches.
        dark: The person prefers dark colours.
    """

    def __init__(
        self, browser: Browser, url: str, *, size: tuple[int, int] = (1280, 900), dark: bool = False
    ) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        (width, height), phone = size, size == PHONE
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the result of a command for this page."""
        return self._browser.call(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript; waits for a promise."""
        options = {"awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits until an expression is true."""
        self.value(
            "new Promise((done) => { const look = () => "
            f"({expression}) ? done() : setTimeout(look, 10); look(); }})"
        )

    def click(self, selector: str) -> None:
        """Presses the mouse's button in the middle of an element."""
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def hover(self, selector: str) -> tuple[float, float]:
        """Moves the mouse to the middle of an element, and returns the place."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def tap(self, selector: str) -> None:
        """Taps on an element."""
        x, y = self.middle(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def middle(self, selector: str) -> tuple[float, float]:
        """Returns the middle of an element, which is scrolled into view."""
        x, y = self.value(
            f"(() => {{ const node = document.querySelector({selector!r}); "
            "node.scrollIntoView({block: 'nearest'}); const r = node.getClientRects()[0]; "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return x, y

    def write(self, selector: str, text: str) -> None:
        """Types a text into a field in place of the one that it has."""
        self.value(f"document.querySelector({selector!r}).select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses a key, such as Enter."""
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def events(self, method: str) -> list[dict[str, Any]]:
        """Returns the parameters of this page's events with a name."""
        own = [e for e in self._browser.events if e.get("sessionId") == self._session]
        return [event["params"] for event in own if event["method"] == method]

    def close(self) -> None:
        """Closes the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)
