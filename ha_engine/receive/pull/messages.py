"""Decode the messages of a source to events. A message or row that is no event is a dead letter.

The rows of all messages are parsed together, since a call of the parser costs as much time as about
300 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ha_engine.errors import InvalidEvents, PayloadTooLarge
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.messages import MessageFormat
from ha_engine.plugins import DeadLetter, Messages, SourceBatch
from ha_engine.receive.columns import ColumnReader, SchemaMismatch
from ha_engine.receive.decode import Decoder, Format
from ha_engine.receive.pull.validate import Validated, joined, parsed_lines

NO_VALUE = "the message has no value"


@dataclass(slots=True)
class _Rows:
    """The rows of some messages as JSON. ``message`` and ``row`` say for each row where it is from:
    its message, and its number in that message."""

    lines: list[bytes] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)

    def add(self, line: bytes, message: int, row: int) -> None:
        self.lines.append(line)
        self.message.append(message)
        self.row.append(row)


class MessageDecoder:
    """Decodes the messages of one source.

    ``form`` is None for Arrow. ``columns`` maps columns of the stream to attributes of a message.
    The other columns come from the message's value. Raises ApplicationError if pyarrow cannot read
    the type of a column from JSON.
    """

    def __init__(
        self,
        schema: pa.Schema,
        rows_max: int,
        form: MessageFormat | None,
        columns: Mapping[str, str],
    ) -> None:
        self._schema, self._rows_max, self._form = schema, rows_max, form
        self._columns = dict(columns)
        self._decoder = Decoder(pa.schema([f for f in schema if f.name not in columns]), rows_max)

    def validate(self, batch: SourceBatch, messages: Messages) -> Validated:
        """Separate the events in ``messages``, which are the rows of ``batch``, from its dead
        letters.

        Raises PayloadTooLarge, and what the format raises if a schema cannot be read.
        """
        attributes, bad = self._attributes(messages)
        refused = {(number, 0): reason for number, reason in bad.items()}
        usable = [number for number in range(len(messages)) if number not in bad]
        read = self._read_arrow if self._form is None else self._read_rows
        events, origins = read(messages, usable, refused)
        letters = tuple(
            _letter(batch, messages, number, row, reason)
            for (number, row), reason in sorted(refused.items())
        )
        return Validated(self._with_attributes(events, origins, attributes), letters)

    # -- values ------------------------------------------------------------------------------------

    def _read_rows(
        self, messages: Messages, usable: Sequence[int], refused: dict[tuple[int, int], str]
    ) -> tuple[pa.RecordBatch, list[int]]:
        """Decode messages of all formats but Arrow; return the events, and for each the number of
        its message."""
        rows = _Rows()
        for number in usable:
            self._split(messages.values[number], number, rows, refused)
        if len(rows.lines) > self._rows_max:
            raise PayloadTooLarge(f"the messages have more than {self._rows_max} rows")
        parts, bad = parsed_lines(self._decoder, rows.lines)
        for at, reason in bad.items():
            refused[rows.message[at], rows.row[at]] = reason
        origins = [number for at, number in enumerate(rows.message) if at not in bad]
        return joined(parts, self._decoder.schema), origins

    def _split(
        self,
        value: bytes | None,
        number: int,
        rows: _Rows,
        refused: dict[tuple[int, int], str],
    ) -> None:
        try:
            for at, row in enumerate(self._rows_of(value)):
                if isinstance(row, BadRow):
                    refused[number, at] = str(row)
                else:
                    rows.add(row, number, at)
        except BadRow as bad:
            refused[number, 0] = str(bad)

    def _rows_of(self, value: bytes | None) -> Iterator[bytes | BadRow]:
        assert self._form is not None
        if value is None:
            raise BadRow(NO_VALUE)
        return self._form.rows(value)

    def _read_arrow(
        self, messages: Messages, usable: Sequence[int], refused: dict[tuple[int, int], str]
    ) -> tuple[pa.RecordBatch, list[int]]:
        parts, origins = list[pa.RecordBatch](), list[int]()
        for number in usable:
            try:
                part = self._decoder.decode(messages.values[number] or b"", Format.ARROW)
            except InvalidEvents as refusal:
                refused[number, 0] = str(refusal)
                continue
            parts.append(part)
            origins += [number] * part.num_rows
        if len(origins) > self._rows_max:
            raise PayloadTooLarge(f"the messages have more than {self._rows_max} rows")
        return joined(parts, self._decoder.schema), origins

    # -- attributes --------------------------------------------------------------------------------

    def _attributes(self, messages: Messages) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the values for each column of an attribute, and the messages whose attribute does
        not fit its column."""
        arrays, bad = dict[str, pa.Array](), dict[int, str]()
        for name, attribute in self._columns.items():
            column, values = self._schema.field(name), messages.attribute(attribute)
            try:
                arrays[name] = _fitting(values, column)
            except (SchemaMismatch, pa.ArrowException) as error:
                for number, value in enumerate(values):
                    try:
                        _fitting([value], column)
                    except (SchemaMismatch, pa.ArrowException):
                        bad[number] = f"its {attribute} does not fit column {name!r}: {error}"
                left = [None if n in bad else value for n, value in enumerate(values)]
                arrays[name] = _fitting(left, column.with_nullable(True))
        return arrays, bad

    def _with_attributes(
        self, events: pa.RecordBatch, origins: Sequence[int], attributes: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        if not attributes:
            return events
        taken = pa.array(origins, pa.int64())
        arrays = [
            attributes[one.name].take(taken) if one.name in attributes else events.column(one.name)
            for one in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _fitting(values: Sequence[object], column: pa.Field) -> pa.Array:
    """Convert the values of an attribute to the type of ``column``. Raises SchemaMismatch and
    ArrowException."""
    array = pa.array(values)
    if array.type != column.type:
        array = array.cast(column.type)
    if array.null_count and not column.nullable:
        raise SchemaMismatch("it is missing, and the column is not null")
    reader = ColumnReader(column)
    if reader.is_checked:
        reader.check(pa.chunked_array([array]), None)
    return array


def _letter(
    batch: SourceBatch, messages: Messages, number: int, row: int, reason: str
) -> DeadLetter:
    place = str(batch.place(number)) + (f", row {row + 1}" if row else "")
    return DeadLetter(place, reason, messages.values[number] or b"")
