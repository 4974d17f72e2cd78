"""Take the events of a request, and answer it when the brokers have all of them.

A request is decoded, written as records and measured before its first record is given to the
producer. So bad events store nothing. After that, a failure of the brokers may leave a part of the
request in the topic. The client then repeats the request, and its events may be stored twice: a
receiver promises at least once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import structlog

from ha_engine.config.receiver import ReceiverLimits
from ha_engine.errors import NotActive, PayloadTooLarge, Rejected, UnknownStream
from ha_engine.query.application import StreamApplication
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.decode import Decoder
from ha_engine.receive.gate import Counters, Receipt
from ha_engine.receive.offsets import Pull
from ha_engine.receive.producers import require_same
from ha_engine.receiver.records import Records, records_of, require_fit
from ha_engine.receiver.topic import Topic
from ha_engine.types import ORIGIN, Submission

log = structlog.get_logger(__name__)

ROW_BYTES = 512
"""Memory of an event in the producer's queue, besides its key and value."""

_LOG_SECONDS = 10.0
"""A stream whose requests fail has one line in the log in this time. A metric counts them all."""

_ELSEWHERE = "send the events again, or to another receiver"

T = TypeVar("T")


class ReceiverCounters(Counters, Protocol):
    """The counters of a receiver."""

    def written(self, stream: str, size: int) -> None:
        """Count the bytes of records that the brokers have."""

    def failed(self, stream: str) -> None:
        """Count a request of which the brokers did not take all events."""


class TopicStore:
    """Stores events in the topics of their streams, on the event loop.

    ``topics`` has the topic of each stream of ``application`` that has one as its log.
    """

    def __init__(
        self,
        application: StreamApplication,
        topics: Mapping[str, Topic],
        limits: ReceiverLimits,
        counters: ReceiverCounters,
    ) -> None:
        self._application, self._topics = application, topics
        self.rows_max = limits.max_request_rows
        self.budget = ByteBudget(limits.max_pending)
        self._counters = counters
        self.counters: Counters = counters
        self._decoders = {
            name: Decoder(application.streams[name].arrow_schema, self.rows_max) for name in topics
        }
        self.waiting = Counter[str]()
        """By stream, the events that wait for the brokers."""
        self._logged = dict[str, float]()
        self._closed: str | None = None
        self._tasks = set[asyncio.Task[Receipt]]()
        self._repeatable: dict[tuple[str, int], tuple[Submission, asyncio.Task[Receipt]]] = {}
        # One thread writes the requests, so that they stay in the order of their arrival.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")

    # -- the receiver's side -----------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """The reason why no stream takes events now, or None if one does."""
        if self._closed is not None:
            return self._closed
        problems = [topic.problem for topic in self._topics.values()]
        return "; ".join(one for one in problems if one) if all(problems) else None

    @property
    def problems(self) -> dict[str, str | None]:
        """The reason why each stream takes no events now, or None if it does."""
        return {stream: topic.problem for stream, topic in self._topics.items()}

    @property
    def under_replicated(self) -> dict[str, int]:
        """By stream, the partitions with a replica that is not in sync."""
        return {stream: topic.under_replicated for stream, topic in self._topics.items()}

    def close(self, reason: str) -> None:
        """Refuse requests from now on. Those that were taken continue."""
        self._closed = reason

    async def idle(self) -> None:
        """Return when each request that was taken is answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- the producers' side -----------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        return list(self._decoders)

    def decoder(self, stream: str) -> Decoder:
        """The decoder of a stream. Raises UnknownStream."""
        if (found := self._decoders.get(stream)) is not None:
            return found
        if stream in self._application.streams:
            raise UnknownStream(
                f"stream {stream} has its events in the journal of the nodes, and a receiver takes "
                "only those of streams whose log is a topic; send them to a node"
            )
        known = ", ".join(self._decoders)
        raise UnknownStream(f"there is no stream {stream[:80]!r}; a receiver takes {known}")

    def require_open(self, stream: str) -> None:
        """Raise NotActive if no stream takes events now."""
        if problem := self.problem:
            raise NotActive(f"{problem}; {_ELSEWHERE}")

    async def submit(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None = None,
        pull: Pull | None = None,
    ) -> Receipt:
        """Write ``batch`` to the topic of ``stream``, and return when the brokers have all of it.

        A request that repeats one that still waits gets the answer of that one. Raises NotActive,
        Backpressure, PayloadTooLarge, InvalidEvents, SequenceConflict.
        """
        assert pull is None, "a receiver has no sources"
        self.require_open(stream)
        if problem := self._topics[stream].problem:
            raise NotActive(f"{problem}; {_ELSEWHERE}")
        task = self._repeated(submission)
        if task is None:
            task = self._begin(stream, batch, submission)
        else:
            self._counters.duplicate(stream, batch.num_rows)
        return await asyncio.shield(task)

    def _repeated(self, submission: Submission | None) -> asyncio.Task[Receipt] | None:
        """The request that ``submission`` repeats, if that one still waits for the brokers."""
        if submission is None:
            return None
        earlier = self._repeatable.get((submission.producer, submission.sequence))
        if earlier is None:
            return None
        require_same(submission, earlier[0].digest)
        return earlier[1]

    def _begin(
        self, stream: str, batch: pa.RecordBatch, submission: Submission | None
    ) -> asyncio.Task[Receipt]:
        """Begin to store a request, in a task that continues if the client leaves."""
        size = batch.nbytes + ROW_BYTES * batch.num_rows
        self._require_possible(size)
        self.budget.take(size)
        task = asyncio.create_task(self._store(stream, batch, submission, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_forget_error)
        if submission is not None:
            key = submission.producer, submission.sequence
            self._repeatable[key] = submission, task
            task.add_done_callback(lambda _: self._repeatable.pop(key))
        return task

    async def _store(
        self, stream: str, batch: pa.RecordBatch, submission: Submission | None, taken: int
    ) -> Receipt:
        started, topic, rows = perf_counter(), self._topics[stream], batch.num_rows
        self.waiting[stream] += rows
        try:
            records = await self._in_thread(partial(_fitting, topic, batch, submission))
            more = records.size + ROW_BYTES * rows - taken
            self._require_possible(taken + more)
            if more > 0:
                self.budget.take(more)
                taken += more
            error = await self._written(topic, records)
        finally:
            self.waiting[stream] -= rows
            self.budget.give(taken)
        if error is not None:
            refusal = _refusal(topic, error)
            self._note_failure(stream, refusal)
            raise refusal
        self._counters.accepted(stream, rows, perf_counter() - started)
        self._counters.written(stream, records.size)
        return Receipt(rows, ORIGIN)

    def _note_failure(self, stream: str, refusal: Rejected) -> None:
        self._counters.failed(stream)
        now = monotonic()
        if now - self._logged.get(stream, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged[stream] = now
            log.warning("a request was not stored", stream=stream, reason=str(refusal))

    def _require_possible(self, size: int) -> None:
        if size > self.budget.size:
            raise PayloadTooLarge(
                f"these events need {size} bytes, and receive.max_pending is {self.budget.size}; "
                "send several smaller requests"
            )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _written(self, topic: Topic, records: Records) -> Any:
        """Write ``records``; return the KafkaError of a record that failed, or None."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def settled(error: Any) -> None:
            loop.call_soon_threadsafe(answer.set_result, error)

        await self._in_thread(partial(topic.write, records, settled))
        return await answer


def _fitting(topic: Topic, batch: pa.RecordBatch, submission: Submission | None) -> Records:
    """The records of a request. Raises InvalidEvents for an event that is too large."""
    records = records_of(batch, topic.partition_by, submission)
    require_fit(records, topic.bytes_max)
    return records


def _refusal(topic: Topic, error: Any) -> Rejected:
    reason = f"{topic.where} did not take all events: {error.str()} ({error.name()})"
    if error.name() == "MSG_SIZE_TOO_LARGE":
        return PayloadTooLarge(f"{reason}; restart the receivers after max.message.bytes changed")
    return NotActive(f"{reason}; send them again, those that were stored are then there twice")


def _forget_error(task: asyncio.Task[Receipt]) -> None:
    """Keep asyncio from logging the refusal of a request whose client has left."""
    if not task.cancelled():
        task.exception()
