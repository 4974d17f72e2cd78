"""Call a plug-in from the event loop: each call in a thread of its own, one call at a time. The
caller may stop waiting for a call at any time.

Python cannot end a thread from outside. If a thread hangs, the next call of the plug-in waits until
that thread has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins.calls import begin, description_of

T = TypeVar("T")

LATE_SECONDS = 10.0
"""A call that takes longer than this is reported as late, and the node continues to wait for it."""


class Calls:
    """Calls the plug-in of one source. While a call of the plug-in is late, ``late`` is called
    repeatedly with a text that says so."""

    def __init__(
        self, whose: str, late: Callable[[str], None], late_after: float = LATE_SECONDS
    ) -> None:
        self._whose, self._late, self._late_after = whose, late, late_after
        self._begun: tuple[str, Future[Any]] | None = None
        self._last: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._begun is not None and not self._begun[1].done()

    async def call(self, step: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. Any error of ``work`` becomes SourceUnavailable or
        SourceRefused.

        If the caller is cancelled, the method returns at once, and the outcome of ``work`` is
        dropped.
        """
        await self._free()
        outcome = self._begin(step, work)
        await self._over(step, outcome)
        try:
            return outcome.result()
        except (SourceUnavailable, SourceRefused):
            raise
        except BaseException as error:
            raise SourceRefused(
                f"{self._whose} failed in {step}: {description_of(error)}"
            ) from error

    async def call_last(self, work: Callable[[], None], within: float) -> None:
        """Run ``work`` after the call that runs now; wait ``within`` seconds at most for its end.

        The outcome of ``work`` is ignored. No other call begins before ``work`` has ended.
        """
        if self._last is None or self._last.done():
            step, before = self._begun if self.busy and self._begun else ("close", None)
            self._last = self._begin(step, lambda: _following(before, work))
        await asyncio.wait({_watched(self._last)}, timeout=within)

    async def _free(self) -> None:
        if self._begun is not None:
            await self._over(*self._begun)

    def _begin(self, step: str, work: Callable[[], T]) -> Future[T]:
        outcome = begin(step, work)
        self._begun = step, outcome
        return outcome

    async def _over(self, step: str, outcome: Future[Any]) -> None:
        waited, watched = 0.0, _watched(outcome)
        while not outcome.done():
            await asyncio.wait({watched}, timeout=self._late_after)
            waited += self._late_after
            if not outcome.done():
                self._late(
                    f"{self._whose} has not returned from {step} for {waited:g} s; restart the "
                    "node if this lasts"
                )


def _following(before: Future[Any] | None, work: Callable[[], None]) -> None:
    if before is not None:
        wait([before])
    work()


def _watched(outcome: Future[Any]) -> asyncio.Future[None]:
    """A future of asyncio that is done when ``outcome`` is done, and whose cancellation does not
    cancel ``outcome``."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    def on_done(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            pass  # the node and its event loop have ended meanwhile

    outcome.add_done_callback(on_done)
    return done
