"""Runs code that may raise anything or never return, in a thread of its own.

A thread cannot be ended from outside, so the caller decides how long it waits (``receive.pull`` and
``publish`` do, each in its way).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(step: str, work: Callable[[], T]) -> Future[T]:
    """Start ``work`` in a thread named ``step``; return the future of its outcome."""
    outcome: Future[T] = Future()
    # A daemon thread: the end of the process does not wait for a call that hangs.
    threading.Thread(target=_run, args=(work, outcome), name=step, daemon=True).start()
    return outcome


def told(error: BaseException) -> str:
    """The error's class, and its text unless that raises an error itself."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _run(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
