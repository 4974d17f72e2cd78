"""Decode the messages of a source to events. A message or row that is no event is a dead letter.

The rows of all messages are parsed together, since a call of the parser costs as much time as about
300 rows. If anything unforeseen happens, the messages are decoded in halves, so that one message
spoils only itself and never stops its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from ha_engine.errors import (
    ApplicationError,
    InvalidEvents,
    PayloadTooLarge,
    SourceRefused,
    SourceUnavailable,
)
from ha_engine.formats.arrow_types import converts_to_attribute
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.messages import VALUE, MessageReader, type_of_attribute
from ha_engine.plugins import DeadLetter, Messages, SourceBatch
from ha_engine.plugins.calls import description_of
from ha_engine.receive.arrow import ArrowReader
from ha_engine.receive.columns import ColumnReader
from ha_engine.receive.decode import Decoder, Format
from ha_engine.receive.pull.validate import (
    Validated,
    joined,
    parsed_batch,
    parsed_lines,
    parted,
)

REASON_CHARACTERS_MAX = 500
ROWS_BYTES_MAX = 64 << 20
"""The most bytes of the rows of several messages, of which a format may repeat the names."""
NO_VALUE, NO_ROW = "the message has no value", "the message has no row"

_STOPS = (PayloadTooLarge, SourceRefused, SourceUnavailable)
"""Errors that concern more than the messages at hand."""


class _Bad(NamedTuple):
    """Row ``row`` of message ``message`` is no event; row 0 may stand for the whole message."""

    message: int
    row: int
    reason: str
    raw: bytes


@dataclass(slots=True)
class _Rows:
    """The rows of some messages as JSON, and for each row its message and its number there."""

    lines: list[bytes] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    bad: list[_Bad] = field(default_factory=list)
    size: int = 0

    def add(self, line: bytes, message: int, row: int) -> None:
        self.lines.append(line)
        self.message.append(message)
        self.row.append(row)
        self.size += len(line)


class _Attributes(NamedTuple):
    """The columns of attributes for the good messages, the row of each message in them, and the bad
    messages with their reasons."""

    rows: pa.RecordBatch
    row: dict[int, int]
    bad: dict[int, str]


class _Decoded(NamedTuple):
    """The events of some messages, for each event the number of its message, and the bad rows."""

    events: pa.RecordBatch
    origins: list[int]
    bad: list[_Bad]


class MessageDecoder:
    """Decodes the messages of one source of a stream with ``schema``.

    ``reader`` is None if ``is_arrow``, or if the value is not decoded. ``columns`` maps columns of
    the stream to attributes of a message, whose types are in ``attributes``. The other columns come
    from the message's value. A batch has at most ``rows_max`` rows. Raises ApplicationError if
    pyarrow cannot read the type of a column from JSON, or convert an attribute to its column.
    """

    def __init__(
        self,
        schema: pa.Schema,
        rows_max: int,
        reader: MessageReader | None,
        columns: Mapping[str, str],
        attributes: Mapping[str, pa.DataType],
        *,
        is_arrow: bool = False,
    ) -> None:
        self._schema, self._rows_max = schema, rows_max
        self._reader, self._is_arrow = reader, is_arrow
        self._columns = {one.name: columns[one.name] for one in schema if one.name in columns}
        self._attributes = attributes
        self._require_convertible()
        self._decoder = Decoder(pa.schema([f for f in schema if f.name not in columns]), rows_max)
        self._mapped_schema = pa.schema([schema.field(name) for name in self._columns])
        readers = [ColumnReader(one) for one in self._mapped_schema]
        self._mapped = ArrowReader(self._mapped_schema, readers)

    @property
    def _is_raw(self) -> bool:
        return self._reader is None and not self._is_arrow

    def validate(self, batch: SourceBatch, messages: Messages) -> Validated:
        """Separate the events in ``messages``, which are the rows of ``batch``, from its dead
        letters.

        Raises PayloadTooLarge, and what the reader raises if a schema cannot be read.
        """
        attributes = self._read_attributes(messages)
        usable = [n for n in range(len(messages)) if n not in attributes.bad]
        parts, bad = list[pa.RecordBatch](), list[_Bad]()
        waiting = [usable] if usable else []
        while waiting:
            numbers = waiting.pop()
            try:
                found = self._decode(messages, numbers)
                parts.append(self._with_attributes(found, attributes))
                bad += found.bad
            except _STOPS:
                raise
            except Exception as error:
                if len(numbers) == 1:
                    [one] = numbers
                    bad.append(_Bad(one, 0, _reason(error), messages.values[one] or b""))
                else:
                    middle = len(numbers) // 2
                    waiting += [numbers[middle:], numbers[:middle]]
        bad += [
            _Bad(number, 0, reason, messages.values[number] or b"")
            for number, reason in attributes.bad.items()
        ]
        letters = tuple(_letter(batch, one) for one in sorted(bad))
        return Validated(joined(parts, self._schema), letters)

    # -- values ------------------------------------------------------------------------------------

    def _decode(self, messages: Messages, numbers: list[int]) -> _Decoded:
        if self._reader is not None:
            return self._decode_rows(self._reader, messages, numbers)
        if self._is_arrow:
            return self._decode_arrow(messages, numbers)
        return _Decoded(_no_columns(len(numbers), self._decoder.schema), numbers, [])

    def _decode_rows(
        self, reader: MessageReader, messages: Messages, numbers: list[int]
    ) -> _Decoded:
        rows = _Rows()
        for number in numbers:
            self._split(reader, messages.values[number], number, rows)
        parts, refused = parsed_lines(self._decoder, rows.lines)
        bad = [
            _Bad(rows.message[at], rows.row[at], reason, rows.lines[at])
            for at, reason in refused.items()
        ]
        origins = [number for at, number in enumerate(rows.message) if at not in refused]
        return _Decoded(joined(parts, self._decoder.schema), origins, sorted(rows.bad + bad))

    def _split(self, reader: MessageReader, value: bytes | None, number: int, rows: _Rows) -> None:
        count = 0
        try:
            if value is None:
                raise BadRow(NO_VALUE)
            for row in reader.rows(value):
                if isinstance(row, BadRow):
                    rows.bad.append(_Bad(number, count, str(row), row.raw))
                else:
                    rows.add(row, number, count)
                count += 1
                self._require_room(len(rows.lines) + len(rows.bad), rows.size)
            if not count:
                raise BadRow(NO_ROW)
        except BadRow as bad:
            rows.bad.append(_Bad(number, 0, str(bad), bad.raw or value or b""))

    def _require_room(self, rows: int, size: int = 0) -> None:
        if rows > self._rows_max:
            raise PayloadTooLarge(f"the messages have more than {self._rows_max} rows")
        if size > ROWS_BYTES_MAX:
            raise PayloadTooLarge(f"the rows of the messages have more than {ROWS_BYTES_MAX} bytes")

    def _decode_arrow(self, messages: Messages, numbers: list[int]) -> _Decoded:
        parts, origins, bad = list[pa.RecordBatch](), list[int](), list[_Bad]()
        for number in numbers:
            value = messages.values[number] or b""
            try:
                events, refused = self._events_of_arrow(value)
            except InvalidEvents as refusal:
                bad.append(_Bad(number, 0, str(refusal), value))
                continue
            bad += [
                _Bad(number, row, reason, content) for row, (reason, content) in refused.items()
            ]
            parts.append(events)
            origins += [number] * events.num_rows
            self._require_room(len(origins) + len(bad))
        return _Decoded(joined(parts, self._decoder.schema), origins, bad)

    def _events_of_arrow(self, value: bytes) -> tuple[pa.RecordBatch, dict[int, tuple[str, bytes]]]:
        """The events of one message, and its bad rows with their reasons and contents. Raises
        InvalidEvents if the whole message is bad."""
        try:
            return self._decoder.decode(value, Format.ARROW), {}
        except InvalidEvents as refusal:
            if refusal.row is None:
                raise
        # The decoder has read the whole message within its limits, and found a bad row only.
        [whole] = pa.ipc.open_stream(value).read_all().combine_chunks().to_batches()
        parts, refused = parsed_batch(self._decoder, whole)
        bad = {
            row: (reason, str(whole.slice(row, 1).to_pylist()[0]).encode())
            for row, reason in refused.items()
        }
        return joined(parts, self._decoder.schema), bad

    # -- attributes --------------------------------------------------------------------------------

    def _read_attributes(self, messages: Messages) -> _Attributes:
        """Convert the attributes of all messages. Raises SourceRefused if the plug-in returned no
        attribute of a name that the application file has."""
        wanted = set(self._columns.values()) - {VALUE}
        if missing := wanted - messages.attributes.keys():
            raise SourceRefused(f"the plug-in returned no attribute {', '.join(sorted(missing))}")

        def parse(low: int, high: int) -> pa.RecordBatch:
            try:
                return self._mapped.shaped(self._given(messages, low, high))
            except InvalidEvents as refusal:
                raise InvalidEvents(f"{refusal.reason} ({self._mapping})", refusal.row) from None
            except Exception as error:  # the values are those of a plug-in, and may be anything
                row = 0 if high - low == 1 else None
                raise InvalidEvents(f"{description_of(error)} ({self._mapping})", row) from None

        parts, bad = parted(len(messages) if self._columns else 0, parse)
        rows = joined(parts, self._mapped_schema)
        good = (number for number in range(len(messages)) if number not in bad)
        return _Attributes(rows, dict(zip(good, range(rows.num_rows), strict=False)), bad)

    def _given(self, messages: Messages, low: int, high: int) -> pa.RecordBatch:
        arrays = [
            pa.array(self._values(messages, attribute, low, high), self._type(attribute))
            for attribute in self._columns.values()
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))

    @property
    def _mapping(self) -> str:
        return ", ".join(f"{column} from {name}" for column, name in self._columns.items())

    def _with_attributes(self, found: _Decoded, attributes: _Attributes) -> pa.RecordBatch:
        if not self._columns:
            return found.events
        taken = attributes.rows.take(
            pa.array([attributes.row[n] for n in found.origins], pa.int64())
        )
        arrays = [
            (taken if one.name in self._columns else found.events).column(one.name)
            for one in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _require_convertible(self) -> None:
        for name, attribute in self._columns.items():
            given, wanted = self._type(attribute), self._schema.field(name).type
            if not converts_to_attribute(given, wanted):
                raise ApplicationError(
                    f"columns.{name}: {attribute} is {given}, and the column is {wanted}; declare "
                    "another type"
                )
        for one in self._schema:
            if self._is_raw and one.name not in self._columns and not one.nullable:
                raise ApplicationError(
                    f"columns: the column {one.name!r} is not null, and a raw message has only "
                    "attributes; map it, or let it be null"
                )

    @staticmethod
    def _values(messages: Messages, attribute: str, low: int, high: int) -> list[object]:
        if attribute == VALUE:
            return list(messages.values[low:high])
        return list(messages.attributes[attribute][low:high])

    def _type(self, attribute: str) -> pa.DataType:
        return type_of_attribute(self._attributes, attribute)


def _no_columns(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of nulls in all columns that are no attribute."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows, one.type) for one in schema], schema=schema)


def _reason(error: Exception) -> str:
    told = error.reason if isinstance(error, InvalidEvents) else description_of(error)
    return told[:REASON_CHARACTERS_MAX]


def _letter(batch: SourceBatch, bad: _Bad) -> DeadLetter:
    place = str(batch.place(bad.message)) + (f", row {bad.row + 1}" if bad.row else "")
    return DeadLetter(place, bad.reason, bad.raw)
