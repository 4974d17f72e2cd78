"""A real browser for the tests: Debian's Chromium, driven through the HTTP of its chromedriver."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import httpx

from tests.e2e.node_under_test import free_port
from tests.programs import found
from tests.waiting import wait_until

PROGRAMS = ("chromium", "chromedriver")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1200,1000",
]  # fmt: skip
START_SECONDS = 60


class Browser:
    """One tab of one session of ``driver``."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver, self._path = driver, f"/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page; return its result."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Run a script that passes its result to its last argument; return the result."""
        return self._post("execute/async", script=script, args=list(arguments))

    def text(self, selector: str = "body") -> str:
        """Return the visible text of the element; empty where nothing matches."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, selector))

    def click(self, selector: str) -> None:
        """Click like a person; fail where something covers the element."""
        element = self._post("element", using="css selector", value=selector)
        self._post(f"element/{next(iter(element.values()))}/click")

    def type(self, selector: str, text: str) -> None:
        element = self._post("element", using="css selector", value=selector)
        self._post(f"element/{next(iter(element.values()))}/value", text=text)

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._post("goog/cdp/execute", cmd=command, params=parameters)

    def picture(self) -> bytes:
        """Return a PNG of the window."""
        answer = self._driver.get(f"{self._path}/screenshot")
        assert answer.status_code == 200, answer.text
        return base64.b64decode(answer.json()["value"])

    def asked(self) -> list[str]:
        """Return the URLs of all requests of the page since its opening."""
        script = "return performance.getEntriesByType('resource').map((one) => one.name)"
        return list(self.run(script))

    def complaints(self) -> list[str]:
        """Return the errors and warnings on the browser's console since the last call."""
        return [entry["message"] for entry in self._post("se/log", type="browser")]

    def close(self) -> None:
        """Close the browser; return when its processes have ended."""
        assert self._driver.delete(self._path).status_code == 200

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._driver.post(f"{self._path}/{path}", json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Run a browser with an empty profile, and delete the profile at the end."""
    chromium, driver = (found(program) for program in PROGRAMS)
    assert chromium is not None
    assert driver is not None
    port = free_port()
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        with (
            tempfile.TemporaryDirectory() as profile,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_SECONDS) as client,
        ):
            wait_until(lambda: _ready(client), within=START_SECONDS)
            browser = Browser(client, _new_session(client, chromium, profile))
            try:
                yield browser
            finally:
                browser.close()
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(client.get("/status").json()["value"]["ready"])
    return False


def _new_session(client: httpx.Client, chromium: str, profile: str) -> str:
    options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()
    assert "sessionId" in answer["value"], answer
    return str(answer["value"]["sessionId"])
