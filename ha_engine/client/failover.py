"""Request a forced failover from one node, and wait until that node is the active."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import fetch_status, force_failover
from ha_engine.errors import EngineError

WAIT_SECONDS_MAX = 15.0


def await_failover(url: str, confirmed_fenced: Sequence[str], by: str) -> float:
    """Force a failover to the node at ``url``; return the seconds until the node is the active.

    Raises EngineError when the node refuses, or is not the active after fifteen seconds.
    """
    began = time.monotonic()
    force_failover(url, confirmed_fenced, by)
    ask = Retrying(
        retry=retry_if_result(lambda role: role != "active"),
        wait=wait_fixed(0.05),
        stop=stop_after_delay(WAIT_SECONDS_MAX),
        retry_error_callback=lambda state: None,
    )
    if ask(lambda: fetch_status(url)["role"]) != "active":
        raise EngineError(
            f"the node has not become the active within {WAIT_SECONDS_MAX:g} s; "
            "run 'ha-engine status', and try again"
        )
    return time.monotonic() - began
