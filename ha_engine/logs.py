"""Logging of the engine's processes: structlog to stderr, for people or as JSON, without secrets.

Each process calls ``configure`` at its start. Modules get their logger from
``structlog.get_logger()``. Libraries (uvicorn, alembic, grpc) log through ``logging``, and
``configure`` sends their lines to the same stream. Start uvicorn with ``log_config=None``, so that
uvicorn does not configure logging itself.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Protocol, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ha_engine.redaction import REDACTED, redact

_SECRET_NAMES = re.compile(r"password|passwd|secret|token|authorization|api_?key", re.IGNORECASE)
_CHATTY = ("py4j", "grpc", "alembic", "asyncio", "httpx", "httpcore", "uvicorn.access")
"""Libraries that log too many info lines. The log keeps only their warnings and errors."""
_COUNTED = "uvicorn.error"
"""A logger that warns of every malformed request, so that a client could fill the disk. Metrics
count such requests."""
_SELF_MADE = ("uvicorn", "uvicorn.error", "uvicorn.access")


class Form(Protocol):
    """The section ``log`` of the config, or what the query process knows of it."""

    @property
    def level(self) -> str: ...

    @property
    def format(self) -> str: ...


def configure(log: Form, *, node: str, process: str, stream: TextIO | None = None) -> None:
    """Send every log line of this process to stderr (or ``stream``), each with node and process.

    A process may call ``configure`` again with another level or format.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(log, _named(node, process), colours=out.isatty()))
    level = logging.getLevelNamesMapping()[log.level.upper()]
    _route_standard_logging(handler, level)
    structlog.configure(
        # Read the level from the standard logger at each line. Modules cache their structlog
        # loggers, so a reload would not change a level that these loggers hold.
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(_named(node, process)),
            _hand_over,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _route_standard_logging(handler: logging.Handler, level: int) -> None:
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)
    for name in _SELF_MADE:
        # uvicorn may have configured its loggers already. Remove its level and its handlers.
        own = logging.getLogger(name)
        own.handlers.clear()
        own.propagate = True
        own.setLevel(logging.NOTSET)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.getLogger(_COUNTED).setLevel(max(level, logging.ERROR))


def _common(named: Processor) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
        _without_secret_values,
    ]


_hand_over: Processor = structlog.stdlib.ProcessorFormatter.wrap_for_formatter


def _named(node: str, process: str) -> Processor:
    def add_names(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, "node": node, "process": process}

    return add_names


def _without_secret_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {key: REDACTED if _SECRET_NAMES.search(key) else event[key] for key in event}


def _formatter(log: Form, named: Processor, *, colours: bool) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_common(named),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_rendered(log, colours=colours),
            _redacted_line,
        ],
    )


def _rendered(log: Form, *, colours: bool) -> list[Processor]:
    match log.format:
        case "json":
            return [
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(default=str),
            ]
        case _:
            # Print plain tracebacks, since rich tracebacks print local variables, which may hold
            # secrets.
            plain = structlog.dev.plain_traceback
            return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _redacted_line(_: WrappedLogger, __: str, line: Any) -> str:
    # Redaction is the last processor, so that it sees the messages, the values and the tracebacks.
    return redact(str(line))
