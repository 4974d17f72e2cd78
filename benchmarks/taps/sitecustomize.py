"""Notes when each step of a node's pipeline begins and ends; for ``benchmarks.timeline`` only.

Python imports a module of this name at its start, in every process whose PYTHONPATH has this
directory. A note costs a few microseconds and is written to one file for each process.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DIRECTORY = os.environ.get("HA_BENCH_NOTES")

_NODE = (
    ("ha_engine.receive.gate", "Gate.submit", "request decoded"),
    ("ha_engine.journal.writer", "JournalWriter._write", "node: journal write + fdatasync"),
    ("ha_engine.node.local_service", "LocalService.AwaitMark", "node: AwaitMark"),
    ("ha_engine.node.local_service", "LocalService.answer_mark", "node: mark committed, answered"),
    ("ha_engine.node.local_service", "LocalService.Locate", "node: Locate"),
    ("ha_engine.node.local_service", "LocalService.AdmitBatch", "node: AdmitBatch"),
    ("ha_engine.outbox.query_outbox", "QueryOutbox.add", "node: rename + directory fsync"),
    ("ha_engine.publish.sinks.postgres", "PostgresSink.publish", "node: sink publish"),
)
_DRIVER = (
    ("ha_engine.query.outbox_writer", "OutboxWriter.__call__", "driver: foreachBatch"),
    ("ha_engine.query.outbox_writer", "OutboxWriter.put", "driver: outbox put (toArrow done)"),
    ("ha_engine.query.outbox_writer", "OutboxWriter._ask", "driver: AdmitBatch call"),
)
_WORKER = (
    ("ha_engine.query.source_reader", "JournalReader.latestOffset", "planner: latestOffset"),
    ("ha_engine.query.source_reader", "JournalReader.partitions", "planner: partitions"),
    ("ha_engine.query.source_reader", "JournalReader._batches", "source: read"),
)


def _taps() -> tuple[tuple[str, str, str], ...]:
    """By what this process was started as."""
    words = " ".join(sys.orig_argv)
    if "ha_engine.node" in words:
        return _NODE
    if "ha_engine.query.main" in words:
        return _DRIVER
    if "pyspark" in words:
        return _WORKER
    return ()


def _note(name: str) -> None:
    with open(f"{_DIRECTORY}/{os.getpid()}.notes", "a") as file:
        file.write(f"{time.time():.6f} {name}\n")


@contextmanager
def _noted(name: str) -> Iterator[None]:
    _note(f"> {name}")
    try:
        yield
    finally:
        _note(f"< {name}")


def _tapped(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(call)
    async def waits(*arguments: Any, **named: Any) -> Any:
        with _noted(name):
            return await call(*arguments, **named)

    @functools.wraps(call)
    def yields(*arguments: Any, **named: Any) -> Any:
        with _noted(name):
            yield from call(*arguments, **named)

    @functools.wraps(call)
    def runs(*arguments: Any, **named: Any) -> Any:
        with _noted(name):
            return call(*arguments, **named)

    if inspect.iscoroutinefunction(call):
        return waits
    return yields if inspect.isgeneratorfunction(call) else runs


def _install() -> None:
    for module, path, name in _taps():
        owner_name, _, method = path.partition(".")
        owner = getattr(importlib.import_module(module), owner_name)
        setattr(owner, method, _tapped(getattr(owner, method), name))


if _DIRECTORY:
    _install()
