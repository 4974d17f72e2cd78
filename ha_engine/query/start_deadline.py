"""Ends this process when Spark takes too long to start.

A JVM that hangs before it answers can be waited for with no call that has a timeout.
"""

from __future__ import annotations

import os
import sys
import threading

import structlog

log = structlog.get_logger(__name__)

LATE_EXIT_CODE = 1


class StartDeadline:
    """Runs from its making until ``spark_started``, at most ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._late = (
            f"Spark did not start within {seconds:g} s; "
            "give the host more room, or raise query.start_timeout"
        )
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def spark_started(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        log.error("query process ends", reason=self._late)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LATE_EXIT_CODE)
