"""Code that may raise anything or never return: begun in a thread of its own, and what it said.

A thread cannot be ended from outside, so who waits for one decides for how long (``receive.pull``
and ``publish`` do, each in its way).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(step: str, work: Callable[[], T]) -> Future[T]:
    """What ``work`` comes to, in a thread named ``step``."""
    outcome: Future[T] = Future()
    # A daemon: the end of the process does not wait for what hangs.
    threading.Thread(target=_run, args=(work, outcome), name=step, daemon=True).start()
    return outcome


def told(error: BaseException) -> str:
    """Its kind and its text, if it has one that can be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _run(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
