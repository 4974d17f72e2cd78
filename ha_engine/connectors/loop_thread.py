"""Run an asyncio library for a plug-in, whose calls block and come from different threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

T = TypeVar("T")

CANCELS_MAX, CANCEL_SECONDS = 20, 0.25


class LoopThread:
    """An event loop in a thread of its own, which runs from construction until ``stop``.

    Connections of the library live in the loop, so their heartbeats go on between the calls.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return the result of ``work``. Raises its exception, or TimeoutError after ``seconds``,
        when ``work`` is cancelled."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(seconds)
        except LateError:
            if not running.cancel():
                raise  # it is an exception of ``work``
            raise TimeoutError(f"no answer within {seconds:g} s") from None

    def stop(self) -> None:
        """Let the thread cancel what runs in the loop, and then end. Does not wait for the end. A
        second call does nothing."""
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._cancel_all()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _cancel_all(self) -> None:
        """Cancel every task, and wait until it has ended. A cancelled task may start others, and
        may wait for a server that does not answer, so this is done repeatedly."""
        for _ in range(CANCELS_MAX):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
