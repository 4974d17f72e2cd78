"""Write log lines in the form of ``logs`` without structlog, for the supervisor.

The supervisor lives as long as the node does and logs little. So it avoids the memory and the start
time of structlog and ``logging``.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from ha_engine.redaction import redact

LEVELS = ("debug", "info", "warning", "error")
_EVENT_WIDTH = 30
_NEEDS_QUOTES = re.compile(r"[\s='\"]")


@dataclass
class _Form:
    """The form of every line of this process."""

    node: str = ""
    process: str = ""
    format: str = "human"
    level: str = "info"
    stream: TextIO | None = None


_form = _Form()


def configure(
    *, node: str, process: str, format: str, level: str, stream: TextIO | None = None
) -> None:
    """Set the form of all lines; may be called again.

    ``format`` and ``level`` are those of the section ``log`` of the config. Lines go to ``stream``,
    or to stderr.
    """
    _form.node, _form.process, _form.stream = node, process, stream
    _form.format, _form.level = format, level


class PlainLog:
    """The log of the module ``logger``."""

    def __init__(self, logger: str) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < LEVELS.index(_form.level):
            return
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        named = {**fields, "node": _form.node, "process": _form.process}
        line = (self._json if _form.format == "json" else self._human)(level, event, at, named)
        print(redact(line), file=_form.stream or sys.stderr, flush=True)

    def _json(self, level: str, event: str, at: str, fields: dict[str, Any]) -> str:
        said = {"event": event, "logger": self._logger, "level": level, "timestamp": at}
        return json.dumps({**said, **fields}, default=str)

    def _human(self, level: str, event: str, at: str, fields: dict[str, Any]) -> str:
        pairs = " ".join(f"{name}={_shown(fields[name])}" for name in sorted(fields))
        return f"{at} [{level:9}] {event:{_EVENT_WIDTH}} [{self._logger}] {pairs}"


def _shown(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    return repr(value) if _NEEDS_QUOTES.search(value) else value
