"""The query process's reports to the supervisor: the steps of its start, and why it ends.

The supervisor gives the query process a pipe, and its descriptor in the variable
``HA_ENGINE_REPORT_FD``. Each line is the JSON object ``{"step": TEXT}`` or ``{"end": REASON,
"by_host": BOOL}``. The pipe works before gRPC is imported, and while a node process restarts. In a
process started by hand, without HA_ENGINE_REPORT_FD, no report is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

ENVIRONMENT = "HA_ENGINE_REPORT_FD"
STARTING_JAVA = "starting Java"
STARTING_SPARK = "starting Spark"
READY = "ready"
"""The start is over: Spark is up, and this process runs what the node commands."""


class StartReport:
    """Sends the reports to the supervisor.

    A report that cannot be written is ignored, because the end of the supervisor ends this process
    anyway.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> StartReport:
        """Take the descriptor from ``environ``, and let no child process inherit it."""
        text = environ.get(ENVIRONMENT)
        if text is None:
            return cls(None)
        os.set_inheritable(int(text), False)
        return cls(int(text))

    def step(self, name: str) -> None:
        self._write({"step": name})

    def end(self, reason: str, *, by_host: bool = False) -> None:
        """Report why this process is about to end. ``by_host`` is true if the host is the cause."""
        self._write({"end": reason, "by_host": by_host})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            pass
