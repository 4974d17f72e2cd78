"""Turn the bytes of a request, over HTTP or gRPC, into the input of the gate, or of a receiver.

This module and its callees check the producer's identity, limit the waiting bytes, decode the body
and count refusals. The modules ``http`` and ``ingest`` handle only their protocols.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

import pyarrow as pa

from ha_engine.errors import InvalidEvents, Rejected, UnknownStream
from ha_engine.plugins import SourceBatch
from ha_engine.receive.body import Body, BodyLimit
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.cloud_events import EventLines, Head
from ha_engine.receive.decode import Decoder, Format
from ha_engine.receive.gate import Counters, Receipt
from ha_engine.receive.joining import SMALL_BYTES, BatchingDecoder
from ha_engine.receive.offsets import Pull
from ha_engine.receive.producers import digest_of
from ha_engine.receive.pull.validate import Validated, validate
from ha_engine.receive.remote_write import Message, RemoteWriteDecoder
from ha_engine.types import Submission

DECODING_THREADS = 2
SEQUENCE_MAX = (1 << 63) - 1
_PRODUCER = re.compile(r"[\x21-\x7e]{1,128}")

SubmissionIdentity = tuple[str, int]
"""A producer's id and the sequence of its request."""


class DecodedRequest(NamedTuple):
    """The arguments of ``Store.submit``."""

    stream: str
    batch: pa.RecordBatch
    submission: Submission | None
    pull: Pull | None = None


class Column(NamedTuple):
    """A column of a stream, where ``type`` is Arrow's name of the column's type."""

    name: str
    type: str
    nullable: bool


class Store(Protocol):
    """Stores the events of requests, each of at most ``rows_max`` events: the gate of a node, or
    the topics of a receiver."""

    rows_max: int
    budget: ByteBudget
    counters: Counters

    @property
    def streams(self) -> list[str]:
        """The names of the streams that have a decoder."""

    def decoder(self, stream: str) -> Decoder:
        """The decoder of a stream. Raises UnknownStream."""

    def require_open(self, stream: str) -> None:
        """Raise NotActive or Backpressure if no events of ``stream`` are accepted now."""

    async def submit(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None = None,
        pull: Pull | None = None,
    ) -> Receipt:
        """Store ``batch``, and return when it is stored for good. Raises Rejected."""


class Intake:
    """Decodes requests for ``store``, with one intake per process, on its event loop. A request
    has at most ``rows_max`` events. ``logs`` says of each stream with a log of its own where that
    is, since producers send the events there."""

    def __init__(self, store: Store, logs: Mapping[str, str] = MappingProxyType({})) -> None:
        self._store, self.rows_max, self._logs = store, store.rows_max, logs
        self.threads = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="decode")
        self._decoders = {
            stream: BatchingDecoder(store.decoder(stream), self.threads) for stream in store.streams
        }
        schemas = {stream: store.decoder(stream).schema for stream in store.streams}
        self._event_lines = {
            stream: EventLines(schema, self.rows_max) for stream, schema in schemas.items()
        }
        self._sample_decoders = {
            stream: RemoteWriteDecoder(schema, self.rows_max) for stream, schema in schemas.items()
        }

    def require_stream(self, stream: str) -> None:
        """Raise UnknownStream unless the application has a stream of this name, whose events the
        journal takes."""
        self._store.decoder(stream)
        if where := self._logs.get(stream):
            raise UnknownStream(
                f"stream {stream} takes no events here; send them to a receiver, or to {where}"
            )

    def require_open(self, stream: str) -> None:
        """Check that the store accepts events of ``stream``, before a body is read. Raises
        NotActive, Backpressure."""
        self._store.require_open(stream)

    def body(self, limit: BodyLimit) -> Body:
        """Make the object that reads the body of one request."""
        return Body(self._store.budget, limit)

    async def unpack(
        self, stream: str, raw: bytes, form: Format, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        """Decode the body of one request. Raises InvalidEvents, PayloadTooLarge."""
        batch = await self._decoders[stream].decode(raw, form)
        return DecodedRequest(stream, batch, _submission(identity, stream, raw, batch.num_rows))

    async def unpack_cloud_events(
        self, stream: str, raw: bytes, head: Head, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        """Decode the body of one request with CloudEvents, which may be none. Raises InvalidEvents,
        PayloadTooLarge."""
        lines_of = partial(self._event_lines[stream].of, head=head)
        batch = await self._decoders[stream].decode_lines(raw, lines_of)
        submission = _submission(identity, stream, head.signed + raw, batch.num_rows)
        return DecodedRequest(stream, batch, submission)

    async def unpack_samples(
        self, stream: str, raw: bytes, message: Message, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        """Decode the body of one request of remote write, which may have no samples. Raises
        InvalidEvents, PayloadTooLarge."""
        decode = self._sample_decoders[stream].decode
        if len(raw) > SMALL_BYTES:
            loop = asyncio.get_running_loop()
            batch = await loop.run_in_executor(self.threads, decode, raw, message)
        else:
            batch = decode(raw, message)
        return DecodedRequest(stream, batch, _submission(identity, stream, raw, batch.num_rows))

    def validate(self, stream: str, batch: SourceBatch) -> Validated:
        """Separate the events in a source's batch from its bad rows. Any thread may call this
        method.

        Raises InvalidEvents, PayloadTooLarge.
        """
        return validate(self._store.decoder(stream), batch)

    async def store(self, request: DecodedRequest) -> Receipt:
        """Store the request and return when it is committed. This method raises the same exceptions
        as ``Store.submit``."""
        return await self._store.submit(*request)

    def columns(self, stream: str) -> list[Column]:
        """The columns of a stream. Raises UnknownStream."""
        schema = self._store.decoder(stream).schema
        return [Column(field.name, str(field.type), field.nullable) for field in schema]

    def count(self, stream: str, refusal: Rejected) -> None:
        """Count a refusal. A stream's name that a client invents must not become the label of a
        metric."""
        known = stream if stream in self._decoders else ""
        self._store.counters.rejected(known, type(refusal).__name__)


def identity_of(
    producer: str | None, sequence: int | None, names: tuple[str, str]
) -> SubmissionIdentity | None:
    """Check the producer id and the sequence of a request, or return None when both are missing.

    ``names`` has the names of producer id and sequence in the client's protocol. Raises
    InvalidEvents.
    """
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise InvalidEvents(f"{names[0]} and {names[1]} belong together; send both or neither")
    if not _PRODUCER.fullmatch(producer):
        raise InvalidEvents(f"{names[0]} must be 1 to 128 visible ASCII characters")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidEvents(f"{names[1]} must be a whole number from 0 to {SEQUENCE_MAX}")
    return producer, sequence


def _submission(
    identity: SubmissionIdentity | None, stream: str, body: bytes, rows: int
) -> Submission | None:
    if identity is None:
        return None
    return Submission(*identity, digest_of(stream, body), rows)
