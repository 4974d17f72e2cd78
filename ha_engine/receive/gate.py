"""The gate stores a request whole or not at all, and answers when the request is committed
(RULES.md#i3, RULES.md#i11).

The gate does a group commit for each stream. If no record of a stream is in flight, the stream's
requests become a record at the end of the event loop's turn. While a record of a stream is in
flight, the gate gathers the stream's further requests in a group. A group becomes a record when no
record of its stream is in flight any more, or when the group is full. Group commit adds no latency
while the gate is idle, and saves records while it is busy. A request never spans two records: it is
stored whole, or refused as too large.

The gate does not know HTTP, and uses the journal only through the Protocol ``GroupJournal``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import pyarrow as pa

from ha_engine.config import ReceiveConfig
from ha_engine.errors import Backpressure, NotActive, OffsetMoved, PayloadTooLarge, UnknownStream
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.decode import Decoder
from ha_engine.receive.group import REQUEST_BYTES_MAX, Group, Request
from ha_engine.receive.log_history import LogHistory
from ha_engine.receive.offsets import Offsets, OffsetTable, Pull, SourceKey
from ha_engine.receive.producers import ProducerTable, require_same
from ha_engine.types import Events, Position, Record, Submission


class GroupJournal(Protocol):
    """The part of the group's journal that the gate uses, implemented by ``node.driver.Driver``."""

    def offer(self, events: Events, payload: bytes) -> Position:
        """Give the record of ``events`` a position, and append the record. Raises NotActive."""

    async def committed(self, sequence: int) -> None:
        """Return when the record at ``sequence`` is committed. Raises NotActive when this node
        demotes or ends before the commit."""


class Backlog(Protocol):
    """Says whether too many accepted events wait for the queries, or a disk is full."""

    def refusal(self, stream: str) -> Backpressure | None:
        """The Backpressure that the gate must raise, or None when the gate may accept events of
        ``stream``."""


class Counters(Protocol):
    """Counts requests for the node's metrics. ``rows`` are events; ``seconds`` is the time from a
    request to its commit."""

    def accepted(self, stream: str, rows: int, seconds: float) -> None: ...

    def duplicate(self, stream: str, rows: int) -> None: ...

    def rejected(self, stream: str, reason: str) -> None: ...


@dataclass(slots=True)
class MemoryCounters:
    """Counters in memory, for a gate whose counts are not exported."""

    rows_accepted: int = 0
    rows_duplicate: int = 0
    rows_forwarded: int = 0
    requests_rejected: dict[str, int] = field(default_factory=dict)

    def accepted(self, stream: str, rows: int, seconds: float) -> None:
        self.rows_accepted += rows

    def duplicate(self, stream: str, rows: int) -> None:
        self.rows_duplicate += rows

    def forwarded(self, stream: str, rows: int) -> None:
        self.rows_forwarded += rows

    def rejected(self, stream: str, reason: str) -> None:
        self.requests_rejected[reason] = self.requests_rejected.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that ``accepted`` rows of a request are committed in the record at ``position``."""

    accepted: int
    position: Position


class Gate:
    """Stores the events of producers and sources; one per node, on its event loop. A new gate is
    closed.

    ``wall_clock_us`` returns microseconds since 1970. The gate writes this time into records, and
    compares it with the times at which known producers sent.
    """

    def __init__(
        self,
        schemas: Mapping[str, pa.Schema],
        journal: GroupJournal,
        backlog: Backlog,
        config: ReceiveConfig,
        wall_clock_us: Callable[[], int],
        counters: Counters | None = None,
    ) -> None:
        self._decoders = {
            name: Decoder(schema, config.max_record_rows) for name, schema in schemas.items()
        }
        self._journal, self._backlog, self._wall_clock_us = journal, backlog, wall_clock_us
        self.rows_max = config.max_record_rows
        self._producers = ProducerTable(config.max_producers, config.dedup_window)
        self.offsets = OffsetTable()
        self.logs = LogHistory()
        self._pulling: set[SourceKey] = set()
        self._closed: NotActive | None = NotActive(
            "this node is starting; send the events again later"
        )
        self.opened = asyncio.Event()
        """Set while the gate is open."""
        self._groups: dict[str, Group] = {}
        self._gathering: dict[tuple[str, int], Request] = {}
        # The producers of gathered requests that are not in the producer table yet.
        self._newcomers = set[str]()
        self._settling: set[asyncio.Task[None]] = set()
        # For each stream, the number of records that are in the journal and not committed.
        self._uncommitted = Counter[str]()
        # The streams whose requests become a record at the end of the event loop's current turn.
        self._due = set[str]()
        self.budget = ByteBudget(config.max_pending)
        self.counters: Counters = counters if counters is not None else MemoryCounters()

    # -- the node's side ---------------------------------------------------------------------------

    def open(self) -> None:
        """Accept events from now on, because this node is the active."""
        self._closed = None
        self.opened.set()

    def close(self, reason: str, active: str | None = None) -> None:
        """Refuse requests with NotActive from now on, including gathered requests that are in no
        record yet.

        A request whose record is already in the journal still waits for the commit of that record.
        """
        self._closed = NotActive(reason, active, stored_nothing=True)
        self.opened.clear()
        for group in self._groups.values():
            self._drop(group, self._closed)
        self._groups.clear()
        self._gathering.clear()
        self._newcomers.clear()

    def replay(self, record: Record) -> None:
        """Update the producer and offset tables by a record of another node, or by one found at
        start."""
        match record.body:
            case Events() as events:
                self._remember(record.position, events)

    def load_base(self, producers: pa.Table, offsets: Offsets) -> None:
        """Load the producer and offset tables as of the records that the journal no longer has."""
        self._producers.load_base(producers, self._wall_clock_us())
        self.offsets.load_base(offsets)
        self.logs.load_base(offsets)

    # -- the producers' side -----------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        return list(self._decoders)

    def decoder(self, stream: str) -> Decoder:
        """The decoder of a stream. Raises UnknownStream."""
        found = self._decoders.get(stream)
        if found is None:
            known = ", ".join(self._decoders) or "none"
            raise UnknownStream(f"there is no stream {stream[:80]!r}; the application has {known}")
        return found

    def require_open(self, stream: str) -> None:
        """Raise NotActive while the gate is closed, or Backpressure while it must refuse events of
        ``stream``."""
        self.require_active()
        refusal = self._backlog.refusal(stream)
        if refusal is not None:
            raise refusal

    def require_active(self) -> None:
        """Raise NotActive while the gate is closed."""
        if self._closed is not None:
            raise NotActive(str(self._closed), self._closed.active, stored_nothing=True)

    async def submit(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None = None,
        pull: Pull | None = None,
    ) -> Receipt:
        """Store ``batch``, all of it or nothing, and return when it is committed.

        If ``submission`` was stored before, the gate stores nothing and returns the receipt of the
        original. A batch with a ``pull`` is stored only if it begins at the journal's offset of its
        source. Raises NotActive, Backpressure, TooManyProducers, PayloadTooLarge, SequenceConflict,
        UnknownStream, OffsetMoved.
        """
        self.require_active()
        if self.decoder(stream).schema != batch.schema:
            raise ValueError(f"the batch does not have the schema of stream {stream}")
        # A repeat needs no room. A refusal would say that nothing of it is stored.
        earlier = None if submission is None else self._earlier(submission)
        if earlier is not None:
            receipt = await earlier
            self.counters.duplicate(stream, receipt.accepted)
            return receipt
        self.require_open(stream)
        started = perf_counter()  # the clock of uvloop ticks in milliseconds
        if pull is not None:
            self._require_next(stream, pull)
        position = await self._gather(stream, batch, submission, pull)
        rows = batch.num_rows + (0 if pull is None else pull.kept)
        self.counters.accepted(stream, rows, perf_counter() - started)
        return Receipt(rows, position)

    def _require_next(self, stream: str, pull: Pull) -> None:
        """Raise OffsetMoved unless ``pull`` begins at the journal's offset of its source.

        A gathered batch is not in the offset table yet, so a second batch of its source is refused.
        """
        if (stream, pull.source) in self._pulling:
            raise OffsetMoved(
                f"another batch of source {pull.source} of stream {stream} is in flight"
            )
        self.offsets.require_next(stream, pull)

    # -- retries -----------------------------------------------------------------------------------

    def _earlier(self, submission: Submission) -> Awaitable[Receipt] | None:
        """The future receipt of the request that ``submission`` repeats, or None when no such
        request is known."""
        request = self._gathering.get((submission.producer, submission.sequence))
        if request is not None:
            require_same(submission, request.digest)
            return self._answer_of(request)
        stored = self._producers.find(submission)
        if stored is None:
            self._require_room(submission.producer)
        return None if stored is None else self._commit_of(stored.position, stored.rows)

    def _require_room(self, producer: str) -> None:
        """Raise TooManyProducers if ``producer`` is new, and another would be forgotten for it."""
        if not self._producers.has(producer) and producer not in self._newcomers:
            self._producers.require_room(len(self._newcomers) + 1, self._wall_clock_us())

    async def _answer_of(self, request: Request) -> Receipt:
        return Receipt(request.batch.num_rows, await asyncio.shield(request.stored))

    async def _commit_of(self, position: Position, rows: int) -> Receipt:
        await self._journal.committed(position.sequence)
        return Receipt(rows, position)

    # -- group commit ------------------------------------------------------------------------------

    def _gather(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None,
        pull: Pull | None,
    ) -> Awaitable[Position]:
        loop = asyncio.get_running_loop()
        size = self.size_of(batch) + (0 if pull is None else pull.size)
        request = Request(batch, size, submission, pull, loop.create_future())
        self.budget.take(request.size)
        group = self._groups.get(stream)
        if group is not None and not group.has_room_for(request, self.rows_max):
            self._offer(stream)
        self._groups.setdefault(stream, Group(stream)).add(request)
        if submission is not None:
            self._gathering[submission.producer, submission.sequence] = request
            if not self._producers.has(submission.producer):
                self._newcomers.add(submission.producer)
        if pull is not None:
            self._pulling.add(key := (stream, pull.source))
            request.stored.add_done_callback(lambda _: self._pulling.discard(key))
        if not self._uncommitted[stream]:
            if not self._due:
                loop.call_soon(self._flush)
            self._due.add(stream)
        return asyncio.shield(request.stored)

    def size_of(self, batch: pa.RecordBatch) -> int:
        """The bytes of a request. Raises PayloadTooLarge."""
        if batch.num_rows > self.rows_max:
            raise PayloadTooLarge(
                f"one request has at most {self.rows_max} events; send several smaller requests"
            )
        size: int = batch.nbytes
        most = min(REQUEST_BYTES_MAX, self.budget.size)
        if size > most:
            raise PayloadTooLarge(
                f"these events have {size} bytes, the limit of a request is {most}; send fewer"
            )
        return size

    def _flush(self) -> None:
        """Append the groups of the streams in ``_due`` to the journal. Any other stream has a
        record in flight and still gathers requests."""
        due, self._due = self._due, set()
        for stream in [one for one in self._groups if one in due]:
            self._offer(stream)

    def _offer(self, stream: str) -> None:
        group = self._groups.pop(stream)
        for request in group.requests:
            if request.submission is not None:
                self._gathering.pop((request.submission.producer, request.submission.sequence))
                self._newcomers.discard(request.submission.producer)
        events, payload = group.record(self._wall_clock_us())
        try:
            position = self._journal.offer(events, payload)
        except Exception as error:  # after any error the callers must not wait for ever
            self._drop(group, error)
            return
        self._remember(position, events)
        name = f"commit of record {position}"
        task = asyncio.get_running_loop().create_task(self._settle(group, position), name=name)
        self._settling.add(task)
        self._uncommitted[stream] += 1

    def _remember(self, position: Position, events: Events) -> None:
        self._producers.apply(position, events)
        self.offsets.apply(events)
        self.logs.apply(position.sequence, events)

    def _drop(self, group: Group, error: BaseException) -> None:
        self.budget.give(group.size)
        group.refuse(error)

    async def _settle(self, group: Group, position: Position) -> None:
        try:
            await self._journal.committed(position.sequence)
            group.answer(position)
        except asyncio.CancelledError:
            group.refuse(
                NotActive("this node is stopping; send the events again to the other node")
            )
            raise
        except Exception as error:
            group.refuse(error)
        finally:
            self.budget.give(group.size)
            self._settling.discard(asyncio.current_task())
            self._uncommitted[group.stream] -= 1
            if not self._uncommitted[group.stream] and group.stream in self._groups:
                self._offer(group.stream)
