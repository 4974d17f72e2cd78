"""A switchover from the outside: asked of the active, and awaited."""

from __future__ import annotations

import time

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import begin_switchover, fetch_status
from ha_engine.errors import EngineError, NodeUnreachable

WAIT_SECONDS_MAX = 10.0


def await_switchover(url: str, to: str | None, by: str) -> tuple[float, str]:
    """Seconds from the call until the lease names the new active, and its name.

    Raises EngineError when the active refuses, or is still the active after ten seconds.
    """
    began = time.monotonic()
    asked, heir = begin_switchover(url, to, by)

    def holder() -> str | None:
        try:
            status = fetch_status(asked)
        except NodeUnreachable:
            return None
        return None if status["role"] == "active" else status["lease"]["holder"]

    ask = Retrying(
        retry=retry_if_result(lambda found: found != heir),
        wait=wait_fixed(0.02),
        stop=stop_after_delay(WAIT_SECONDS_MAX),
        retry_error_callback=lambda state: None,
    )
    if ask(holder) != heir:
        raise EngineError(
            f"{heir} has not become the active within {WAIT_SECONDS_MAX:g} s; see: ha-engine status"
        )
    return time.monotonic() - began, heir
