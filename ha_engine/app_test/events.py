"""Decode the events of a test, as a node decodes those of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa

from ha_engine.app_test.cases import Batch, Case, Events, Place
from ha_engine.client.payload import as_line
from ha_engine.client.sources import Part, open_source
from ha_engine.client.transport import RemoteColumn
from ha_engine.errors import ConfigError, InvalidEvents
from ha_engine.query.application import SYSTEM_COLUMNS, StreamApplication
from ha_engine.receive.decode import Decoder, Format

RECORD_ROWS_MAX = 20_000
"""A longer list of events becomes several records, as on a node."""
_FIRST_RECEIVED_AT = datetime(2024, 1, 1, tzinfo=UTC)
_RECEIVED_AT = "_received_at"


@dataclass(frozen=True, slots=True)
class DecodedEvents:
    """The events of one record. ``place_of`` says for people where the event of a row is."""

    stream: str
    rows: pa.RecordBatch
    place_of: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The records of a batch, and the time at which they were received."""

    records: tuple[DecodedEvents, ...]
    received_at: datetime

    @classmethod
    def empty(cls) -> DecodedBatch:
        return cls((), _FIRST_RECEIVED_AT)


def decode_batches(case: Case, application: StreamApplication) -> tuple[DecodedBatch, ...]:
    """Decode all events of a test. Raises BadTestFile, which names the wrong event."""
    decoders = {
        name: Decoder(stream.arrow_schema, RECORD_ROWS_MAX)
        for name, stream in application.streams.items()
    }
    return tuple(_decoded(number, batch, decoders) for number, batch in enumerate(case.batches, 1))


def _decoded(number: int, batch: Batch, decoders: Mapping[str, Decoder]) -> DecodedBatch:
    records = [
        record for events in batch.events for record in _records(events, decoders[events.stream])
    ]
    return DecodedBatch(tuple(records), _received_at(number, batch))


def _received_at(number: int, batch: Batch) -> datetime:
    """The time that the test file gives, or else as many seconds after the first time as the batch
    has as its number."""
    if batch.received_at is None:
        return _FIRST_RECEIVED_AT + timedelta(seconds=number)
    decoder = Decoder(pa.schema([SYSTEM_COLUMNS[_RECEIVED_AT].arrow]), 1)
    try:
        rows = decoder.decode(as_line({_RECEIVED_AT: batch.received_at}), Format.NDJSON)
    except InvalidEvents as error:
        raise batch.place.at(_RECEIVED_AT).bad(error.reason) from None
    received: datetime = rows.column(0)[0].as_py()
    return received


def _records(events: Events, decoder: Decoder) -> Iterator[DecodedEvents]:
    if events.file is not None:
        parts, numbered = parts_of(events.file, decoder.schema, events.place)
        for part in parts:
            batch = decoded(part, decoder, events.place)
            yield DecodedEvents(events.stream, batch, partial(_in_file, events, part, numbered))
        return
    for low in range(0, len(events.rows), RECORD_ROWS_MAX):
        rows = events.rows[low : low + RECORD_ROWS_MAX]
        where = [events.place.at(low + number) for number in range(len(rows))]
        lines = [_line(row, place) for row, place in zip(rows, where, strict=True)]
        try:
            batch = decoder.decode(b"\n".join(lines), Format.NDJSON)
        except InvalidEvents as error:
            place = events.place if error.row is None else where[error.row]
            raise place.bad(error.reason) from None
        yield DecodedEvents(events.stream, batch, partial(_in_test_file, where))


def _in_file(events: Events, part: Part, numbered: str, row: int) -> str:
    return f"{numbered} {part.numbers[row]} of {events.file}"


def _in_test_file(where: Sequence[Place], row: int) -> str:
    return f"line {where[row].line}"


def _line(row: Mapping[str, object], place: Place) -> bytes:
    try:
        return as_line(dict(row))
    except InvalidEvents as error:
        raise place.bad(error.reason) from None


def parts_of(file: Path, schema: pa.Schema, place: Place) -> tuple[Iterator[Part], str]:
    """Read a file of rows; also return whether its parts number lines or rows.

    The iterator and this call raise BadTestFile for ``place``, where the test names the file.
    """
    columns = [RemoteColumn(one.name, str(one.type), one.nullable) for one in schema]
    try:
        source = open_source(file, "auto")
    except ConfigError as error:
        raise place.bad(str(error).partition("; add --format")[0]) from None

    def parts() -> Iterator[Part]:
        with closing(source):
            try:
                yield from source.parts(RECORD_ROWS_MAX, lambda: columns)
            except InvalidEvents as error:
                raise place.bad(f"{file}: {error.reason}") from None

    return parts(), source.unit


def decoded(part: Part, decoder: Decoder, place: Place) -> pa.RecordBatch:
    """Decode a part of a file. Raises BadTestFile for ``place``, where the test names the file."""
    try:
        return decoder.decode(part.payload.body, Format(part.payload.form.value))
    except InvalidEvents as error:
        where = "" if error.row is None else f"line or row {part.numbers[error.row]} of the file: "
        raise place.bad(f"{where}{error.reason}") from None
