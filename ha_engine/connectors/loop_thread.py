"""Run an asyncio library for a plug-in, whose calls block and come from different threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, which runs from construction until ``stop``.

    Connections of the library live in the loop, so their heartbeats go on between the calls.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
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
        """Cancel what runs in the loop, and end the thread. A second call does nothing."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
            self._loop.call_soon_threadsafe(self._end)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        # One more turn, in which cancelled tasks run their handlers.
        self._loop.call_soon(self._loop.stop)


async def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
