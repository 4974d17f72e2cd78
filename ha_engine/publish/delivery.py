"""Deliver one query's batches to one sink: claim its ledger, then send batch after batch.

This module does not decide what may be published. The sink's ledger names the last published batch,
and the outbox has the admitted batches. The authority says how long this node may publish
(RULES.md#r17, RULES.md#r24).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential
from tenacity.wait import wait_base

from ha_engine.errors import Fenced, OutboxDamaged, SinkRefused, SinkUnavailable
from ha_engine.outbox.outbox import OutboxBatch
from ha_engine.publish.sink import Authority, Deadline, Sink

log = structlog.get_logger(__name__)

T = TypeVar("T")

LEAST_SECONDS = 0.05
"""A call with less remaining time than this waits for the next renewal of the lease."""
REFUSED_SECONDS_MAX = 60.0
"""The longest pause after a refusal: an operator may have corrected the sink meanwhile."""


class SinkState(Enum):
    """The state of a delivery, for the status page and metrics."""

    STOPPED = "stopped"
    CLAIMING = "claiming"
    PUBLISHING = "publishing"
    SUSPENDED = "suspended"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    FENCED = "fenced"


_FAILED = frozenset({SinkState.UNAVAILABLE, SinkState.REFUSED})


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of one sink.

    ``backlog`` counts admitted batches that the sink lacks. ``since`` is the Unix time of the last
    change of ``state`` or ``error``. ``dead_letters`` counts the rows that this process has put
    aside.
    """

    query: str
    sink: str
    state: SinkState
    published_through: int | None
    backlog: int
    error: str | None
    since: float
    dead_letters: int


class AdmittedBatches(Protocol):
    """The methods of the outbox that a delivery uses."""

    def last_admitted(self, query: str) -> int: ...
    def floor(self, query: str) -> int: ...
    def batch(self, query: str, number: int) -> OutboxBatch | None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """The limit of one call of a sink, and the longest pause between two attempts, in seconds.

    ``jitter`` chooses each pause between two limits.
    """

    call_timeout: float = 10.0
    backoff_max: float = 5.0
    jitter: Callable[[float, float], float] = random.uniform


class Delivery:
    """Delivers one query's batches to one sink.

    Invariant (RULES.md#i7): a delivery sends batch n + 1 only after the ledger was at batch n under
    the delivery's epoch.
    """

    def __init__(
        self,
        query: str,
        sink: Sink,
        outbox: AdmittedBatches,
        authority: Authority,
        timing: Timing,
        start_after: Callable[[], int],
        group_id: Callable[[], str],
    ) -> None:
        self.query, self.sink = query, sink
        self._outbox, self._authority, self._timing = outbox, authority, timing
        self._start_after, self._group_id = start_after, group_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"publish {query}/{sink.name}")
        self._wake = asyncio.Event()
        self._through: int | None = None
        self._ledger_known = self._to_claim_again = False
        self._state, self._error, self._since = SinkState.STOPPED, "", time.time()

    def wake(self) -> None:
        """Wake the delivery if it waits, because a batch was admitted."""
        self._wake.set()

    def claim_again(self) -> None:
        """Claim the ledger again if the delivery waits for a batch, since somebody else could not
        write to the sink."""
        self._to_claim_again = True
        self._wake.set()

    def status(self) -> SinkStatus:
        """The present status."""
        through = self._outbox.floor(self.query) if self._through is None else self._through
        backlog = max(0, self._outbox.last_admitted(self.query) - through)
        return SinkStatus(
            self.query,
            self.sink.name,
            self._state,
            self._through,
            backlog,
            self._error or None,
            self._since,
            self.sink.dead_letters,
        )

    async def run(self, epoch: int, published: Callable[[int], None]) -> None:
        """Publish until cancelled. Call ``published`` with each batch that the ledger has reached.

        Raises Fenced, and OutboxDamaged when an admitted batch cannot be read.
        """
        # Each run reports the ledger's batch again, because a node that acts under a forced epoch
        # waits for the report (RULES.md#r26).
        self._ledger_known, self._through = False, None
        try:
            while True:
                await self._with_retries(self._advance, epoch, published)
        except Fenced as error:
            self._become(SinkState.FENCED, str(error))
            raise
        finally:
            await _over(asyncio.ensure_future(self._run_blocking(self.sink.close)))
            if self._state is not SinkState.FENCED:
                self._become(SinkState.STOPPED)

    def end(self) -> None:
        """End the delivery's thread. The delivery cannot run again."""
        self._thread.shutdown(wait=False)

    # -- one step ------------------------------------------------------------------------------

    async def _advance(self, epoch: int, published: Callable[[int], None]) -> None:
        if not self._ledger_known:
            await self._claim(epoch, published)
        number = (self._through or 0) + 1
        self._ledger_known = False  # if this step fails, only the ledger has the right batch
        batch = await self._next_batch(number)
        if batch is None:
            return
        try:
            await self._call(lambda deadline: self.sink.publish(number, batch, epoch, deadline))
        except OutboxDamaged:
            self._require_ahead(number)  # its file is missing if the batch was trimmed meanwhile
            raise
        self._ledger_known = True
        self._become(SinkState.PUBLISHING)
        self._reached(number, published)

    async def _claim(self, epoch: int, published: Callable[[int], None]) -> None:
        if self._state not in _FAILED:
            self._become(SinkState.CLAIMING)
        self._to_claim_again = False
        start_after = self._start_after()
        through = await self._call(
            lambda deadline: self.sink.claim(epoch, start_after, self._group_id(), deadline)
        )
        self._require_ours(through)
        self._ledger_known = True
        if self._state not in _FAILED:
            self._become(SinkState.PUBLISHING)
        if through != self._through:
            self._reached(through, published)

    def _require_ours(self, through: int) -> None:
        """Refuse a ledger whose last batch this node's journal never planned (RULES.md#i7).

        A planned batch is accepted even if this node lacks its output, because the previous active
        may have published the batch.
        """
        last = max(
            self._outbox.last_admitted(self.query), self._authority.highest_planned(self.query)
        )
        if through > last:
            raise SinkRefused(
                f"the ledger of sink {self.sink.name} says that batch {through} of query "
                f"{self.query} is published, but this node planned none after {last}; bring back "
                f"the data directory that made batch {through}, or give the sink a new name"
            )

    def _reached(self, number: int, published: Callable[[int], None]) -> None:
        self._through = number
        published(number)

    async def _next_batch(self, number: int) -> OutboxBatch | None:
        """Wait for the batch. Return None if the ledger must be claimed again first."""
        while not self._to_claim_again:
            self._wake.clear()
            batch = self._outbox.batch(self.query, number)
            if batch is not None:
                return batch
            self._require_ahead(number)
            self._become(SinkState.PUBLISHING)
            await self._wake.wait()
        return None

    def _require_ahead(self, number: int) -> None:
        floor = self._outbox.floor(self.query)
        if number <= floor:
            raise SinkRefused(
                f"sink {self.sink.name} of query {self.query} lacks batch {number}, but the outbox "
                f"begins after batch {floor}; give the sink a new name to let it begin there, or "
                "restore the sink's ledger together with its rows"
            )

    # -- calls ---------------------------------------------------------------------------------

    async def _call(self, work: Callable[[Deadline], T]) -> T:
        await self._authorized()
        deadline = Deadline(self._authority, self._timing.call_timeout)
        running = asyncio.ensure_future(self._run_blocking(lambda: work(deadline)))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Wait until the call has ended, because the code that cancelled it may demote the node
            # next.
            deadline.cancel()
            await _over(running)
            raise

    async def _run_blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _authorized(self) -> None:
        while self._authority.remaining_seconds() < LEAST_SECONDS:
            self._become(SinkState.SUSPENDED)
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), LEAST_SECONDS)
            except TimeoutError:
                pass  # check again: a renewal need not call wake()

    async def _with_retries(
        self,
        step: Callable[[int, Callable[[int], None]], Awaitable[None]],
        epoch: int,
        published: Callable[[int], None],
    ) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((SinkUnavailable, SinkRefused)),
            wait=_Pause(self._timing),
            before_sleep=self._failed,
            reraise=True,
        )
        await retrying(step, epoch, published)

    def _failed(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        refused = isinstance(error, SinkRefused)
        self._become(SinkState.REFUSED if refused else SinkState.UNAVAILABLE, str(error))

    def _become(self, state: SinkState, error: str = "") -> None:
        if state is self._state and error == self._error:
            return
        failed_before = self._state in _FAILED
        self._state, self._error, self._since = state, error, time.time()
        if error:
            log.warning("sink fails", query=self.query, sink=self.sink.name, reason=error)
        elif failed_before and state is SinkState.PUBLISHING:
            log.info("sink takes batches again", query=self.query, sink=self.sink.name)


async def _over(running: asyncio.Future[Any]) -> None:
    """Wait until a call of a sink has ended, even if cancelled meanwhile, and ignore its result.

    The next claim of the ledger shows whether the call succeeded.
    """
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            pass
    running.exception()


class _Pause(wait_base):
    """Exponential pauses with jitter between attempts.

    Pauses after a refusal are longer, because only an operator can correct the cause.
    """

    def __init__(self, timing: Timing) -> None:
        self._jitter = timing.jitter
        self._unavailable = wait_exponential(multiplier=0.1, max=timing.backoff_max)
        self._refused = wait_exponential(multiplier=1, max=REFUSED_SECONDS_MAX)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        wait = self._refused if isinstance(error, SinkRefused) else self._unavailable
        return self._jitter(0.0, float(wait(retry_state)))
