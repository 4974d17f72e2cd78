"""Errors that PySpark and Py4J log with their stacks, though the engine reports them in a line."""

from __future__ import annotations

import logging

from py4j.protocol import Py4JNetworkError

from ha_engine.errors import BatchFailed

_OF_PY4J = ("py4j.clientserver", "py4j.java_gateway", "root")
"""Py4J also logs without a logger of its own."""
_OF_REFUSED_QUERIES = "SQLQueryContextLogger"


def quiet_spark_logs() -> None:
    # The user gets the refusal of a query without the stack of the JVM.
    logging.getLogger(_OF_REFUSED_QUERIES).setLevel(logging.CRITICAL + 1)
    for name in _OF_PY4J:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop an error that another line has: the runner says why a batch failed, and the query
    process why its JVM ended."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, BatchFailed | Py4JNetworkError)
