"""Request a switchover from the active, and wait until the successor is the active."""

from __future__ import annotations

import time

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from ha_engine.client.admin import begin_switchover, fetch_status
from ha_engine.errors import EngineError, NodeUnreachable, NotReady

PATIENCE_SECONDS, WAIT_SECONDS_MAX = 5.0, 10.0


def await_switchover(
    url: str, to: str | None, by: str, patience: float = PATIENCE_SECONDS
) -> tuple[float, str]:
    """Switch over; return the seconds from the accepted request until the lease names the
    successor, and the successor's name.

    A refusal is final only after ``patience`` seconds. Under load, the successor's queries may be a
    batch behind at one moment and not at the next. Raises NotReady when the active still refuses
    after ``patience`` seconds. Raises EngineError when the successor is not the active ten seconds
    after the accepted request. Raises NodeUnreachable.
    """
    asking = Retrying(
        retry=retry_if_exception_type(NotReady),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(patience),
        reraise=True,
    )

    def begin() -> tuple[float, str, str]:
        return time.monotonic(), *begin_switchover(url, to, by)

    began, asked, successor = asking(begin)

    def holder() -> str | None:
        try:
            status = fetch_status(asked)
        except NodeUnreachable:
            return None
        return None if status["role"] == "active" else status["lease"]["holder"]

    ask = Retrying(
        retry=retry_if_result(lambda found: found != successor),
        wait=wait_fixed(0.02),
        stop=stop_after_delay(WAIT_SECONDS_MAX),
        retry_error_callback=lambda state: None,
    )
    if ask(holder) != successor:
        raise EngineError(
            f"{successor} has not become the active within {WAIT_SECONDS_MAX:g} s; "
            "run 'ha-engine status'"
        )
    return time.monotonic() - began, successor
