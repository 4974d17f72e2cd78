"""The query process's reports to the supervisor: the steps of its start, and why it ends.

The supervisor hands the query process a pipe, whose descriptor ``HA_ENGINE_REPORT_FD`` names. Each
line is a JSON object: ``{"step": TEXT}`` or ``{"end": REASON, "by_host": BOOL}``. The pipe works
before gRPC is imported, and it outlives a node process that restarts. Without the variable, as in a
process started by hand, the reports go nowhere.
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
    """The reports. A report never fails and never blocks for long: the end of the supervisor ends
    this process anyway."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> StartReport:
        """Take the descriptor from ``environ``; Python closes it for every child."""
        text = environ.get(ENVIRONMENT)
        if text is None:
            return cls(None)
        os.set_inheritable(int(text), False)
        return cls(int(text))

    def step(self, name: str) -> None:
        self._write({"step": name})

    def end(self, reason: str, *, by_host: bool = False) -> None:
        """Report why this process is about to end; ``by_host``: the machine caused it."""
        self._write({"end": reason, "by_host": by_host})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            pass
