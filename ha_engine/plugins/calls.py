"""Run code of a plug-in, which may raise anything or never return, in a thread of its own.

A thread cannot be ended from outside, so the caller (``receive.pull`` or ``publish``) decides how
long it waits for the outcome.
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
    # The thread is a daemon, so that a hanging call does not delay the end of the process.
    threading.Thread(target=_run, args=(work, outcome), name=step, daemon=True).start()
    return outcome


def description_of(error: BaseException) -> str:
    """Describe an error by its class and text, or by its class alone if reading the text fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _run(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
