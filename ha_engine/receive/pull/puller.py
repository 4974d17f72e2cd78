"""Read one source while this node accepts events: open the source at the journal's offset, then
read its batches.

The module ``receivers`` starts a puller when the gate opens, and stops the puller when the gate
closes. The gate refuses a batch that does not begin at the journal's offset of its source.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pyarrow as pa
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential
from tenacity.wait import wait_base

from ha_engine.errors import (
    Backpressure,
    NotActive,
    OffsetMoved,
    PayloadTooLarge,
    SourceRefused,
    SourceUnavailable,
)
from ha_engine.plugins import Backlog, DeadLetter, Messages, SourceBatch, SourcePlugin
from ha_engine.receive.intake import DecodedRequest, Intake
from ha_engine.receive.offsets import OffsetTable, Pull, SourceOffset
from ha_engine.receive.pull.calls import LATE_SECONDS, Calls
from ha_engine.receive.pull.coerce import coerced
from ha_engine.receive.pull.dead_letters import SourceDeadLetters
from ha_engine.receive.pull.messages import MessageDecoder
from ha_engine.receive.pull.validate import Validated

log = structlog.get_logger(__name__)

ROWS_MAX = 10_000
READ_SECONDS = 1.0
"""A read without rows returns after this time, so that a node that is no longer active soon stops
reading."""
CLOSE_SECONDS = 0.2
ERROR_CHARACTERS_MAX = 1_000
IDLE_SECONDS = 0.05
"""A read without rows takes at least this time. Otherwise a plug-in that never waits would use a
whole CPU core."""


class SourceState(Enum):
    """The state of a source, for the status page and metrics."""

    STOPPED = "stopped"
    READING = "reading"
    IDLE = "idle"
    PAUSED = "paused"
    LATE = "late"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"


_FAILED = frozenset({SourceState.UNAVAILABLE, SourceState.REFUSED})


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of one source.

    ``known`` is the journal's offset of the source, the same on every node. ``backlog`` is what the
    source reports to be unread; it is unknown on a node that is not active. ``since`` is the Unix
    time of the last change of ``state`` or ``error``. ``failures`` is the number of failures since
    the process began. ``dead_letters`` is the directory of the source's dead letters on this node.
    """

    stream: str
    source: str
    type: str
    state: SourceState
    known: SourceOffset
    backlog: Backlog
    error: str | None
    since: float
    failures: int
    dead_letters: Path


@dataclass(frozen=True, slots=True)
class Timing:
    """The longest pauses between two attempts, and the duration after which a call is late, in
    seconds."""

    backoff_max: float = 5.0
    refused_max: float = 60.0
    late_after: float = LATE_SECONDS


class Puller:
    """Reads one source.

    ``make`` creates the plug-in's instance, and may raise any exception. ``offsets`` has the
    journal's offset of the source. ``messages`` decodes the messages of a source whose class has
    attributes. ``rows_max`` limits the events of a record.
    """

    def __init__(
        self,
        stream: str,
        source: str,
        kind: str,
        make: Callable[[], SourcePlugin],
        intake: Intake,
        offsets: OffsetTable,
        dead_letters: SourceDeadLetters,
        timing: Timing | None = None,
        messages: MessageDecoder | None = None,
        rows_max: int | None = None,
    ) -> None:
        self.stream, self.source, self._kind = stream, source, kind
        self._make, self._intake, self._dead_letters = make, intake, dead_letters
        self._offsets = offsets
        self._timing, self._messages = timing or Timing(), messages
        whose = f"source {source} of stream {stream}, of type {kind},"
        self._calls = Calls(whose, self._late, self._timing.late_after)
        self._whose = whose
        self._plugin: SourcePlugin | None = None
        self._most = rows_max or min(ROWS_MAX, intake.rows_max)
        self._is_open, self._rows_max = False, self._most
        self._state, self._error, self._since = SourceState.STOPPED, "", time.time()
        # The offset up to which the source has read, from which the journal's offset may differ
        # meanwhile.
        self._after: str | None = None
        self._backlog = Backlog()
        self._failures = 0

    def status(self) -> SourceStatus:
        """The present status."""
        return SourceStatus(
            self.stream,
            self.source,
            self._kind,
            self._state,
            self._known,
            self._backlog,
            self._error or None,
            self._since,
            self._failures,
            self._dead_letters.directory,
        )

    async def run(self) -> None:
        """Read batches until the task is cancelled, then wait at most CLOSE_SECONDS for the plug-in
        to close."""
        self._is_open = False
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(
                (SourceUnavailable, SourceRefused, NotActive, OffsetMoved)
            ),
            wait=_Pause(self._timing),
            before_sleep=self._failed,
            reraise=True,
        )
        try:
            while True:
                await retrying(self._step)
        finally:
            self._backlog = Backlog()
            self._become(SourceState.STOPPED)
            if self._plugin is not None:
                await self._calls.call_last(self._plugin.close, CLOSE_SECONDS)

    # -- one step ----------------------------------------------------------------------------------

    async def _step(self) -> None:
        await self._room()
        if not self._is_open:
            await self._open()
        self._is_open = False  # if this step fails, only the journal has the right offset
        began = time.monotonic()
        batch = await self._read()
        if batch is None or self._says_nothing(batch):
            self._backlog = _nothing(self._backlog)
            self._become(SourceState.IDLE)
            await asyncio.sleep(max(0.0, began + IDLE_SECONDS - time.monotonic()))
        else:
            await self._store(batch)
            self._backlog = batch.backlog or Backlog()
            self._rows_max = min(self._most, 2 * self._rows_max)
            self._become(SourceState.READING)
        self._is_open = True

    def _says_nothing(self, batch: SourceBatch) -> bool:
        """Whether ``batch`` has nothing new, so that its record would only use space on every
        disk."""
        is_empty = not batch.rows and not batch.dead_letters
        return is_empty and batch.offset == self._after

    async def _open(self) -> None:
        if self._plugin is None:
            self._plugin = await self._calls.call("construction", self._make)
        plugin, offset = self._plugin, self._known.offset
        await self._calls.call("open", lambda: plugin.open(offset))
        self._after = offset

    async def _read(self) -> SourceBatch | None:
        plugin, most = self._plugin, self._rows_max
        assert plugin is not None
        return await self._calls.call(
            "read", lambda: coerced(plugin.read(most, READ_SECONDS), most)
        )

    async def _room(self) -> None:
        """Wait until the gate accepts events, before any read. Raises NotActive."""
        while True:
            try:
                self._intake.require_open(self.stream)
                return
            except Backpressure as full:
                await self._pause(full)

    async def _pause(self, full: Backpressure) -> None:
        self._become(SourceState.PAUSED, str(full))
        await asyncio.sleep(full.retry_after_seconds)

    @property
    def _known(self) -> SourceOffset:
        return self._offsets.find(self.stream, self.source)

    # -- a batch -----------------------------------------------------------------------------------

    async def _store(self, batch: SourceBatch) -> None:
        """Store the dead letters before the events, so that a journalled offset never skips an
        unstored row."""
        validated = await self._calls.call("validation", lambda: self._validated(batch))
        if isinstance(validated, PayloadTooLarge):
            await self._store_less(batch, validated)
            return
        letters = [*batch.dead_letters, *validated.dead_letters]
        if letters:
            await self._put_aside(self._known.batches + 1, letters)
        pull = Pull(self.source, self._after, batch.offset, len(letters), batch.kept)
        try:
            await self._submit(DecodedRequest(self.stream, validated.events, None, pull))
            self._after = batch.offset
        except PayloadTooLarge as error:
            await self._store_less(batch, error)

    def _validated(self, batch: SourceBatch) -> Validated | PayloadTooLarge:
        """Separate the events of ``batch`` from its dead letters, or say that it has too many."""
        if not isinstance(batch.rows, Messages):
            return self._intake.validate(self.stream, batch)
        if self._messages is None:
            raise TypeError("the plug-in returned messages, and its class has no attributes")
        try:
            return self._messages.validate(batch, batch.rows)
        except PayloadTooLarge as error:
            return error

    async def _store_less(self, batch: SourceBatch, too_large: PayloadTooLarge) -> None:
        """Make the next read smaller after a too large batch, or make a dead letter of a single too
        large row."""
        if len(batch.rows) == 1:
            await self._store(await self._without_row(batch, str(too_large)))
            return
        self._rows_max = max(1, len(batch.rows) // 2)
        problem = f"{self._whose} is read again in smaller batches: {too_large}"
        raise SourceUnavailable(problem) from too_large

    async def _without_row(self, batch: SourceBatch, reason: str) -> SourceBatch:
        place = await self._calls.call("place", lambda: str(batch.place(0)))
        letters = [*batch.dead_letters, DeadLetter(place, reason, _content(batch))]
        return replace(batch, rows=(), dead_letters=letters)

    async def _put_aside(self, number: int, letters: list[DeadLetter]) -> None:
        await asyncio.to_thread(self._dead_letters.put_aside, number, letters)

    async def _submit(self, request: DecodedRequest) -> None:
        while True:
            try:
                await self._intake.store(request)
                return
            except Backpressure as full:
                await self._pause(full)

    # -- state -------------------------------------------------------------------------------------

    def _late(self, problem: str) -> None:
        self._become(SourceState.LATE, problem)

    def _failed(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        match error:
            case NotActive():
                self._become(SourceState.PAUSED, str(error))
            case SourceRefused():
                self._failures += 1
                self._become(SourceState.REFUSED, str(error))
            case _:
                self._failures += 1
                self._become(SourceState.UNAVAILABLE, str(error))

    def _become(self, state: SourceState, error: str = "") -> None:
        # The text of an error may contain characters that UTF-8 cannot encode, such as those of a
        # file name.
        error = error[:ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
        if state is self._state and error == self._error:
            return
        failed_before = self._state in _FAILED or self._state is SourceState.LATE
        self._state, self._error, self._since = state, error, time.time()
        place = {"stream": self.stream, "source": self.source}
        if state in _FAILED or state is SourceState.LATE:
            log.warning("cannot read source, retrying", **place, reason=error)
        elif failed_before and state in (SourceState.READING, SourceState.IDLE):
            log.info("source works again", **place)


def _content(batch: SourceBatch) -> bytes:
    """The content of a batch of one row."""
    match batch.rows:
        case pa.RecordBatch() as rows:
            return str(rows.to_pylist()[0]).encode()
        case Messages() as messages:
            return messages.values[0] or b""
        case rows:
            return rows[0]


def _nothing(known: Backlog) -> Backlog:
    """Zero for each figure that ``known`` has."""
    return Backlog(
        None if known.events is None else 0,
        None if known.bytes is None else 0,
        None if known.seconds is None else 0.0,
    )


class _Pause(wait_base):
    """Exponential waits with jitter. The waits after SourceRefused are longer, because only an
    operator can correct its cause."""

    def __init__(self, timing: Timing) -> None:
        self._unavailable = wait_random_exponential(multiplier=0.1, max=timing.backoff_max)
        self._refused = wait_random_exponential(multiplier=1, max=timing.refused_max)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        wait = self._refused if isinstance(error, SourceRefused) else self._unavailable
        return float(wait(retry_state))
