"""Logging of the engine's processes: structlog to stderr, for people or as JSON, without secrets.

A call of ``configure`` at the start of a process; modules take ``structlog.get_logger()``. What
libraries log through ``logging`` (uvicorn, alembic, grpc) takes the same way out. Start uvicorn
with ``log_config=None``, so that it does not set up its own.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ha_engine.config import LogConfig
from ha_engine.redaction import REDACTED, redact

_SECRET_NAMES = re.compile(r"password|passwd|secret|token|authorization|api_?key", re.IGNORECASE)
_CHATTY = ("py4j", "grpc", "alembic", "asyncio", "httpx", "httpcore", "uvicorn.access")
"""Libraries whose info lines would bury ours; their warnings are kept."""
_SELF_MADE = ("uvicorn", "uvicorn.error", "uvicorn.access")


def configure(log: LogConfig, *, node: str, process: str, stream: TextIO | None = None) -> None:
    """Send every log line of this process to stderr (or ``stream``), each with node and process.

    May be called again with another level or format.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(log, _named(node, process), colours=out.isatty()))
    level = logging.getLevelNamesMapping()[log.level.upper()]
    _route_standard_logging(handler, level)
    structlog.configure(
        # The level is asked of the standard logger at each line: who has logged before keeps his
        # logger, and a reload must reach him too.
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
        # A server that was started with a log set-up of its own leaves level and handlers behind.
        own = logging.getLogger(name)
        own.handlers.clear()
        own.propagate = True
        own.setLevel(logging.NOTSET)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


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


def _formatter(log: LogConfig, named: Processor, *, colours: bool) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_common(named),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_rendered(log, colours=colours),
            _redacted_line,
        ],
    )


def _rendered(log: LogConfig, *, colours: bool) -> list[Processor]:
    match log.format:
        case "json":
            return [
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(default=str),
            ]
        case "human":
            # Plain tracebacks: the pretty ones print local variables, and with them secrets.
            plain = structlog.dev.plain_traceback
            return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _redacted_line(_: WrappedLogger, __: str, line: Any) -> str:
    # Last of all, so that nothing reaches the stream past it: messages, values, tracebacks.
    return redact(str(line))
