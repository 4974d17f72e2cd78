"""The source kind ``nats`` reads the messages of a JetStream stream by their sequences.

The offset is the sequence of the last message, so any node can read again after any offset. The
source uses a consumer of its own, in memory and without acknowledgements, which it creates at the
sequence after its position. Nothing depends on the consumer: if it is gone, or if it delivered a
message that did not arrive, the source creates another one at its position.

No message is lost or read twice, for these reasons:

1. A consumer numbers its deliveries without gaps. If a number is missing, a message did not arrive.
   The source then ignores all that follows, and creates a new consumer.
2. Sequences of the stream may have gaps, because of the filter or because messages were deleted.
   After a gap the source asks for the stream's first sequence. If the first sequence is not behind
   the position, no limit of the stream has removed a message after the position, since the first
   sequence only grows.
3. If the first sequence is behind the position, unread messages may be gone. The source refuses.
4. When no message comes, the source looks for the next message in the stream itself. A message that
   the consumer withholds is found there.
5. A stream of the same name that was created again, or that lost its end, has other messages under
   the same sequences. The offset has the time of the stream's creation and that of the last message
   read, and the source compares both.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import AfterValidator

from ha_engine.connectors.nats.connection import Connection, NatsOptions
from ha_engine.connectors.nats.subjects import checked_filter
from ha_engine.connectors.streams import BATCH_BYTES_MAX, parsed_position, peeked
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, DeadLetter, Messages, SourceBatch, SourcePlace

CONSUMER_SECONDS = 60.0
"""The server deletes the consumer when nobody has read from it for this time."""
MOVE_SECONDS = 10.0
"""The time between two batches without rows, which move the journal's offset past messages that the
filter skips."""
_ACK = "$JS.ACK."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NatsSourceOptions(NatsOptions):
    """The options of the source kind ``nats``, besides those of ``NatsOptions``.

    - ``subject``: only messages whose subject matches this pattern.
    - ``start``: without an offset, begin with the stream's ``first`` message, or with the first
      ``new`` message.
    - ``skip_lost``: continue after messages that the stream has removed before they were read. A
      dead letter names their sequences.
    """

    subject: Annotated[str, AfterValidator(checked_filter)] | None = None
    start: Literal["first", "new"] = "first"
    skip_lost: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the source: all messages up to ``sequence`` are read.

    ``created`` is the time of the stream's creation. ``last`` is the sequence and the time, in
    microseconds since 1970, of the last message that was read.
    """

    stream: str
    created: str
    sequence: int
    last: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError if ``text`` is no offset of this kind of source."""
        try:
            found = json.loads(text)
            last = found.pop("last")
            return cls(**found, last=None if last is None else (int(last[0]), int(last[1])))
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(str(error)) from error

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Delivered:
    """A message, with its sequence in the stream, the number of its delivery by the consumer, its
    time in microseconds since 1970, and how many messages wait after it."""

    sequence: int
    number: int
    time: int
    pending: int
    subject: str
    value: bytes
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, message: Any) -> _Delivered:
        # $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.number.time.pending[.token]
        tokens = message.reply.split(".")
        at = 5 if len(tokens) == 9 else 7
        sequence, number, nanoseconds, pending = map(int, tokens[at : at + 4])
        return cls(
            sequence,
            number,
            nanoseconds // 1000,
            pending,
            message.subject,
            message.data,
            message.headers or {},
        )


@dataclass
class _Pull:
    """The answers to one request for ``wanted`` messages.

    ``too_large`` is true if the next message exceeds the request's limit of bytes. ``is_lost`` is
    true if the consumer is gone.
    """

    wanted: int
    messages: list[_Delivered] = field(default_factory=list)
    too_large: bool = False
    is_lost: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, message: Any) -> None:
        if message.reply.startswith(_ACK):
            self.messages.append(one := _Delivered.parse(message))
            # A server need not say that a request without waiting has ended.
            if len(self.messages) == self.wanted or not one.pending:
                self.done.set()
            return
        headers = message.headers or {}
        status, description = headers.get("Status"), headers.get("Description", "")
        if status == "100":
            return
        if status == "409":
            self.too_large = "MaxBytes" in description
            self.is_lost = not self.too_large
        elif status not in ("404", "408"):
            self.is_lost = True
        self.done.set()


class NatsSource:
    """Implements ``plugins.SourcePlugin``."""

    Options = NatsSourceOptions
    guarantee: ClassVar[str] = "exactly once: the stream is read by its sequences"
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "subject": pa.string(),
        "sequence": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.string(),
    }

    def __init__(self, options: NatsSourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        name = f"{place.group} {place.stream} {place.source}"
        self._connection = Connection(options, name, SourceRefused, SourceUnavailable)
        self._position = Position(options.stream, "", 0)
        self._letters: list[DeadLetter] = []
        # The subject of requests to the consumer, or "" when there is no usable consumer.
        self._consumer = ""
        self._delivered, self._used = 0, 0.0
        # The offset of the last batch, and when it was returned.
        self._returned: tuple[Position | None, float] = (None, 0.0)

    def check(self) -> None:
        """Connect, and look for the stream."""
        try:
            self._connection.open()
            self._connection.call(self._known_stream(), self._options.timeout)
        finally:
            self._connection.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows after ``offset``. The consumer of ``peek`` takes nothing."""
        return peeked(self, offset, rows_max, seconds)

    def open(self, offset: str | None) -> None:
        self._consumer, self._letters = "", []
        self._connection.open()
        self._connection.call(self._begin(offset), 4 * self._options.timeout)

    def close(self) -> None:
        self._consumer = ""
        self._connection.close()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        limit = seconds + 6 * self._options.timeout
        return self._connection.call(self._read(rows_max, seconds), limit)

    # -- opening -----------------------------------------------------------------------------------

    async def _begin(self, offset: str | None) -> None:
        stream = await self._known_stream()
        state, created = stream["state"], stream["created"]
        if offset is None:
            is_new = self._options.start == "new"
            last = state["last_seq"] if is_new else max(state["first_seq"], 1) - 1
            self._position = Position(self._options.stream, created, last)
            # The first batch journals where "new" begins, though it has no rows.
            moved = None if is_new else self._position
        else:
            name, source = self._options.stream, self._place.source
            self._position = moved = parsed_position(Position.parse, offset, name, source)
        self._returned = moved, time.monotonic()
        await self._require_same(stream)
        await self._create_consumer()

    async def _known_stream(self) -> dict[str, Any]:
        stream = await self._connection.stream()
        retention = stream["config"].get("retention", "limits")
        if retention != "limits":
            raise SourceRefused(
                f"{self._connection.where} has the retention {retention}, so that it deletes "
                "messages once they are read, and no node can read them again; use a stream with "
                "the retention limits, which may have that stream as its source"
            )
        return stream

    async def _require_same(self, stream: dict[str, Any]) -> None:
        """Refuse a stream that does not have the messages that were read."""
        position, state = self._position, stream["state"]
        if stream["created"] != position.created:
            raise self._replaced(
                f"was created at {stream['created']}, but the source read a stream that was "
                f"created at {position.created}"
            )
        if state["last_seq"] < position.sequence:
            raise self._replaced(
                f"ends at sequence {state['last_seq']}, but the source has read up to sequence "
                f"{position.sequence}"
            )
        if position.last is not None:
            sequence, read = position.last
            found = await self._connection.message({"seq": sequence})
            if found is not None and _microseconds(found["time"]) != read:
                raise self._replaced(f"has another message at sequence {sequence} than was read")
        self._require_kept(state)

    def _replaced(self, reason: str) -> SourceRefused:
        return SourceRefused(
            f"{self._connection.where} {reason}: it was created again, or restored from an older "
            "state, or lost its last messages; restore it, or give the source another name to read "
            "it from its start"
        )

    def _require_kept(self, state: dict[str, Any]) -> None:
        """Refuse, or skip, messages after the position that the stream has removed."""
        first, last, after = state["first_seq"], state["last_seq"], self._position.sequence + 1
        if first <= after or last < after:
            return
        gone = f"sequences {after} to {first - 1}"
        if not self._options.skip_lost:
            perhaps = " (perhaps none matches the key subject)" if self._options.subject else ""
            raise SourceRefused(
                f"{self._connection.where} no longer has the {gone}, which the source has not read"
                f"{perhaps}: a limit of the stream, or a purge, removed them; raise the limits of "
                "the stream, and set skip_lost: true to continue without these messages"
            )
        self._letters.append(
            DeadLetter(
                f"{self._options.stream}, {gone}", "the stream removed them before they were read"
            )
        )
        self._position = replace(self._position, sequence=first - 1)

    # -- reading -----------------------------------------------------------------------------------

    async def _read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if not self._consumer or time.monotonic() - self._used > CONSUMER_SECONDS / 2:
            await self._create_consumer()
        found = await self._next(rows_max, seconds)
        kept = self._in_order(found)
        if _has_gap([self._position.sequence, *(one.sequence for one in kept)]):
            # Ask after the messages arrived: what was removed until now is visible in the answer.
            await self._require_unbroken(kept)
        if kept:
            last = kept[-1]
            self._position = replace(
                self._position, sequence=last.sequence, last=(last.sequence, last.time)
            )
            return self._batch(kept)
        await self._look_behind()
        return self._batch([]) if self._must_move() else None

    async def _next(self, rows_max: int, seconds: float) -> list[_Delivered]:
        """Return the messages that are there, or wait for one."""
        pull = await self._pull(rows_max, BATCH_BYTES_MAX)
        if pull.too_large:
            # The consumer may have passed the message that it did not deliver.
            self._consumer = ""
            if not pull.messages:
                await self._create_consumer()
                pull = await self._pull(1)
        if pull.messages or seconds <= 0 or not self._consumer:
            return pull.messages
        pull = await self._pull(1, wait_seconds=seconds)
        size = sum(len(one.value) for one in pull.messages)
        if pull.messages and rows_max > 1 and size < BATCH_BYTES_MAX and pull.messages[-1].pending:
            more = await self._pull(rows_max - 1, BATCH_BYTES_MAX - size)
            if more.too_large:
                self._consumer = ""
            return pull.messages + more.messages
        return pull.messages

    async def _pull(
        self, wanted: int, bytes_max: int | None = None, wait_seconds: float = 0.0
    ) -> _Pull:
        """Request messages of the consumer.

        Each request has an inbox of its own, so that no late answer to an earlier request mixes
        with its answers.
        """
        request: dict[str, Any] = {"batch": wanted}
        if bytes_max is not None:
            request["max_bytes"] = bytes_max
        request |= {"expires": int(wait_seconds * 1e9)} if wait_seconds else {"no_wait": True}
        client, pull = self._connection.client, _Pull(wanted)
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox, cb=pull.take)
        self._used = time.monotonic()
        try:
            await client.publish(self._consumer, json.dumps(request).encode(), reply=inbox)
            await self._wait(pull, wait_seconds)
        finally:
            if not client.is_closed:
                await answers.unsubscribe()
        if pull.is_lost:
            self._consumer = ""
        return pull

    async def _wait(self, pull: _Pull, wait_seconds: float) -> None:
        count = -1
        while not pull.done.is_set() and len(pull.messages) > count:
            count = len(pull.messages)
            try:
                await asyncio.wait_for(pull.done.wait(), wait_seconds + self._options.timeout)
            except TimeoutError:
                wait_seconds = 0.0
        if not pull.done.is_set():
            # The consumer is gone, or it waits for messages that were purged.
            self._consumer = ""

    def _in_order(self, found: Sequence[_Delivered]) -> list[_Delivered]:
        """Return the messages before the first one that did not arrive."""
        kept = list[_Delivered]()
        for one in found:
            if one.number != self._delivered + 1:
                self._consumer = ""
                break
            self._delivered += 1
            kept.append(one)
        return kept

    async def _require_unbroken(self, kept: Sequence[_Delivered]) -> None:
        stream = await self._known_stream()
        if stream["created"] != self._position.created:
            await self._require_same(stream)
        first = stream["state"]["first_seq"]
        position = self._position
        for one in kept:
            if one.sequence > self._position.sequence + 1 and first > self._position.sequence + 1:
                gap = {"first_seq": min(first, one.sequence), "last_seq": one.sequence}
                self._require_kept(gap)
            self._position = replace(self._position, sequence=one.sequence)
        self._position = position

    async def _look_behind(self) -> None:
        """Move the position to the end of the stream, if no message for the source is there.

        The answer about the next message is later than the end of the stream, so it holds for all
        messages up to that end.
        """
        stream = await self._known_stream()
        if stream["created"] != self._position.created or (
            stream["state"]["last_seq"] < self._position.sequence
        ):
            await self._require_same(stream)
        end, after = stream["state"]["last_seq"], self._position.sequence + 1
        if end < after:
            return
        found = await self._connection.message(
            {"seq": after, "next_by_subj": self._options.subject or ">"}
        )
        if found is not None and int(found["seq"]) <= end:
            self._consumer = ""  # the consumer should have delivered it
            return
        # What was removed until now was perhaps there before.
        self._require_kept((await self._known_stream())["state"])
        self._position = replace(self._position, sequence=max(end, self._position.sequence))

    def _must_move(self) -> bool:
        returned, when = self._returned
        if self._letters or returned is None:
            return True
        late = time.monotonic() - when > MOVE_SECONDS
        return late and returned.sequence != self._position.sequence

    async def _create_consumer(self) -> None:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._position.sequence + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": -1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(CONSUMER_SECONDS * 1e9),
        }
        if self._options.subject is not None:
            config["filter_subject"] = self._options.subject
        name = self._options.stream
        answer = await self._connection.request(
            f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": config}
        )
        self._consumer = self._connection.subject_of(f"CONSUMER.MSG.NEXT.{name}.{answer['name']}")
        self._delivered, self._used = 0, time.monotonic()

    # -- a batch -----------------------------------------------------------------------------------

    def _batch(self, kept: Sequence[_Delivered]) -> SourceBatch:
        letters, self._letters = self._letters, []
        self._returned = self._position, time.monotonic()
        attributes = {name: _attribute(name, kept) for name in self._place.attributes}
        backlog = None
        if kept:
            # The next message is not older than the last one that was read.
            pending, age = kept[-1].pending, time.time() - kept[-1].time / 1e6
            backlog = Backlog(events=pending, seconds=max(0.0, age) if pending else 0.0)
        sequences = [one.sequence for one in kept]
        return SourceBatch(
            self._position.text,
            Messages([one.value for one in kept], attributes),
            letters,
            lambda row: f"{self._options.stream}, sequence {sequences[row]}",
            backlog,
        )


def _has_gap(sequences: Sequence[int]) -> bool:
    return sequences[-1] - sequences[0] != len(sequences) - 1


def _attribute(name: str, kept: Sequence[_Delivered]) -> list[Any]:
    match name:
        case "subject":
            return [one.subject for one in kept]
        case "sequence":
            return [one.sequence for one in kept]
        case "timestamp":
            return [_EPOCH + timedelta(microseconds=one.time) for one in kept]
    header = name.removeprefix("header.")
    return [one.headers.get(header) for one in kept]


def _microseconds(written: str) -> int:
    """The time of a stored message, such as 2026-11-26T17:33:31.88429461Z, since 1970."""
    seconds, _, fraction = written.removesuffix("Z").partition(".")
    at = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    return int((at - _EPOCH).total_seconds()) * 1_000_000 + int(fraction[:6].ljust(6, "0") or "0")
