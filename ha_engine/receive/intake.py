"""Turn the bytes of a request into the gate's input, for HTTP and gRPC alike.

This module and its callees check the producer's identity, limit the waiting bytes, decode the body
and count refusals. ``http`` and ``ingest`` handle only their protocols.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from ha_engine.errors import InvalidEvents, Rejected
from ha_engine.plugins import SourceBatch
from ha_engine.receive.body import Body
from ha_engine.receive.decode import Format
from ha_engine.receive.gate import Gate, Receipt
from ha_engine.receive.joining import BatchingDecoder
from ha_engine.receive.offsets import Pull, SourceOffset
from ha_engine.receive.producers import digest_of
from ha_engine.receive.pull.validate import Validated, validate
from ha_engine.types import Submission

DECODING_THREADS = 2
SEQUENCE_MAX = (1 << 63) - 1
_PRODUCER = re.compile(r"[\x21-\x7e]{1,128}")

SubmissionIdentity = tuple[str, int]
"""A producer's id and the sequence of its request."""


class DecodedRequest(NamedTuple):
    """The arguments of ``Gate.submit``."""

    stream: str
    batch: pa.RecordBatch
    submission: Submission | None
    pull: Pull | None = None


class Column(NamedTuple):
    """A column of a stream; ``type`` is Arrow's name."""

    name: str
    type: str
    nullable: bool


class Intake:
    """One per node, on its event loop. For one request ``body_max`` limits the bytes of the body,
    and ``rows_max`` the events."""

    def __init__(self, gate: Gate, body_max: int) -> None:
        self._gate, self.body_max, self.rows_max = gate, body_max, gate.rows_max
        threads = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="decode")
        self._decoders = {
            stream: BatchingDecoder(gate.decoder(stream), threads) for stream in gate.streams
        }

    def require_stream(self, stream: str) -> None:
        """Raise UnknownStream unless the application has the stream."""
        self._gate.decoder(stream)

    def require_open(self) -> None:
        """Check before a body is read that the gate is open. Raises NotActive, Backpressure."""
        self._gate.require_open()

    def body(self) -> Body:
        """Reserve bytes for the body of one request."""
        return Body(self._gate.budget, self.body_max)

    async def unpack(
        self, stream: str, raw: bytes, form: Format, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        """Decode a body. Raises InvalidEvents, PayloadTooLarge."""
        batch = await self._decoders[stream].decode(raw, form)
        return DecodedRequest(stream, batch, _submission(identity, stream, raw, batch.num_rows))

    def validate(self, stream: str, batch: SourceBatch) -> Validated:
        """Separate events from bad rows of a source; call it from any thread.

        Raises InvalidEvents, PayloadTooLarge.
        """
        return validate(self._gate.decoder(stream), batch)

    def pulled(self, stream: str, source: str) -> SourceOffset:
        """How far the journal has a source."""
        return self._gate.offsets.find(stream, source)

    async def store(self, request: DecodedRequest) -> Receipt:
        """Store the request and return when it is committed. Raises what ``Gate.submit`` raises."""
        return await self._gate.submit(*request)

    def columns(self, stream: str) -> list[Column]:
        """The columns of a stream. Raises UnknownStream."""
        schema = self._gate.decoder(stream).schema
        return [Column(field.name, str(field.type), field.nullable) for field in schema]

    def count(self, stream: str, refusal: Rejected) -> None:
        """Count a refusal. A stream name that a client invents must not become a metric's label."""
        known = stream if stream in self._decoders else ""
        self._gate.counters.rejected(known, type(refusal).__name__)


def identity_of(
    producer: str | None, sequence: int | None, names: tuple[str, str]
) -> SubmissionIdentity | None:
    """Check a request's identity; None when both parts are missing.

    ``names`` are the names of the two parts in the client's protocol. Raises InvalidEvents.
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
