"""Write log lines of the supervisor without structlog, in the same form as ``ha_engine.logs``.

The supervisor lives as long as the node and logs little, so it avoids the memory and the start time
of structlog and ``logging``.
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
    """The form of every log line of this process."""

    node: str = ""
    process: str = ""
    format: str = "human"
    level: str = "info"
    stream: TextIO | None = None


_form = _Form()


def configure(
    *, node: str, process: str, format: str, level: str, stream: TextIO | None = None
) -> None:
    """Set the form of all later log lines.

    ``format`` and ``level`` come from the section ``log`` of the config. Lines go to ``stream``, or
    to stderr if ``stream`` is None.
    """
    _form.node, _form.process, _form.stream = node, process, stream
    _form.format, _form.level = format, level


class PlainLog:
    """Writes log lines that name ``logger`` as their source."""

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
        entry = {"event": event, "logger": self._logger, "level": level, "timestamp": at}
        return json.dumps({**entry, **fields}, default=str)

    def _human(self, level: str, event: str, at: str, fields: dict[str, Any]) -> str:
        pairs = " ".join(f"{name}={_shown(fields[name])}" for name in sorted(fields))
        return f"{at} [{level:9}] {event:{_EVENT_WIDTH}} [{self._logger}] {pairs}"


def _shown(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    return repr(value) if _NEEDS_QUOTES.search(value) else value
