"""Calls of a plug-in from the event loop: each in a thread of its own, one at a time, and waited
for no longer than the caller likes.

A thread cannot be ended from outside. One that hangs is left alone, and no other call follows until
it has come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins.calls import begin, told

T = TypeVar("T")

LATE_SECONDS = 10.0
"""What should have ended long ago is told of as late; it is waited for all the same."""


class Calls:
    """Of one source. ``late(text)`` hears of a call that takes too long, once in a while."""

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
        """Raises SourceUnavailable or SourceRefused, whatever ``work`` raises.

        Who is cancelled goes at once; what the call comes to is dropped.
        """
        await self._free()
        outcome = self._begin(step, work)
        await self._over(step, outcome)
        try:
            return outcome.result()
        except (SourceUnavailable, SourceRefused):
            raise
        except BaseException as error:
            raise SourceRefused(f"{self._whose} failed in {step}: {told(error)}") from error

    async def call_last(self, work: Callable[[], None], within: float) -> None:
        """Let ``work`` follow whatever runs now, be it after ``within``; how it ends is of no
        interest. No other call begins before it has ended."""
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
                    f"{self._whose} has not come back from {step} for {waited:g} s; restart the "
                    "node if it stays so"
                )


def _following(before: Future[Any] | None, work: Callable[[], None]) -> None:
    if before is not None:
        wait([before])
    work()


def _watched(outcome: Future[Any]) -> asyncio.Future[None]:
    """Done when ``outcome`` is; to cancel it does nothing to ``outcome``."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def heard(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            pass  # the node has ended meanwhile, and its loop with it

    outcome.add_done_callback(heard)
    return done
