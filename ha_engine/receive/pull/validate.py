"""Separate the rows of a source that are events of its stream from its dead letters.

A bad row does not make the engine refuse the row's batch. The decoder decides which rows are bad,
as it does for a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from ha_engine.errors import InvalidEvents
from ha_engine.plugins import DeadLetter, Messages, SourceBatch
from ha_engine.receive.decode import Decoder, Format

_BLANK = b" \t\r"

Parse = Callable[[int, int], pa.RecordBatch]
"""Parses the rows from the first index to before the second. Raises InvalidEvents."""


class Validated(NamedTuple):
    """The rows of a batch that are events, and its other rows as dead letters, each in the batch's
    order."""

    events: pa.RecordBatch
    dead_letters: tuple[DeadLetter, ...]


def validate(decoder: Decoder, batch: SourceBatch) -> Validated:
    """Validate one batch. Raises InvalidEvents when the columns of a record batch do not fit the
    stream."""
    match batch.rows:
        case pa.RecordBatch():
            return _validate_arrow(decoder, batch.rows, batch)
        case Messages():
            raise TypeError("a MessageDecoder validates messages")
        case rows:
            return _validate_lines(decoder, rows, batch)


def _validate_lines(decoder: Decoder, rows: Sequence[bytes], batch: SourceBatch) -> Validated:
    parts, refused = parsed_lines(decoder, rows)
    letters = [
        DeadLetter(str(batch.place(number)), refused[number], rows[number])
        for number in sorted(refused)
    ]
    return Validated(joined(parts, decoder.schema), tuple(letters))


def parsed_lines(
    decoder: Decoder, rows: Sequence[bytes]
) -> tuple[list[pa.RecordBatch], dict[int, str]]:
    """Parse JSON objects; return the good rows in pieces, and each bad row with the reason."""
    lines, numbers, refused = list[bytes](), list[int](), dict[int, str]()
    for number, row in enumerate(rows):
        line = row.strip(_BLANK)
        if not line or b"\n" in line:
            refused[number] = "the row has a line break" if line else "the row is empty"
        else:
            lines.append(line)
            numbers.append(number)

    def parse(low: int, high: int) -> pa.RecordBatch:
        return decoder.decode(b"\n".join(lines[low:high]), Format.NDJSON)

    parts, bad = parted(len(lines), parse)
    refused |= {numbers[at]: reason for at, reason in bad.items()}
    return parts, refused


def _validate_arrow(decoder: Decoder, rows: pa.RecordBatch, batch: SourceBatch) -> Validated:
    parts, refused = parsed_batch(decoder, rows)
    letters = [
        DeadLetter(
            str(batch.place(number)), reason, str(rows.slice(number, 1).to_pylist()[0]).encode()
        )
        for number, reason in sorted(refused.items())
    ]
    return Validated(joined(parts, decoder.schema), tuple(letters))


def parsed_batch(
    decoder: Decoder, rows: pa.RecordBatch
) -> tuple[list[pa.RecordBatch], dict[int, str]]:
    """Check rows in Arrow; return the good rows in pieces, and each bad row with the reason."""

    def parse(low: int, high: int) -> pa.RecordBatch:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows.slice(low, high - low))
        return decoder.decode(sink.getvalue().to_pybytes(), Format.ARROW)

    return parted(rows.num_rows, parse)


def parted(count: int, parse: Parse) -> tuple[list[pa.RecordBatch], dict[int, str]]:
    """Return the good rows in pieces, and each bad row with the reason.

    The rows after a bad row are parsed in halves. Even if many rows are bad, each row is parsed
    only about log(``count``) times.
    """
    parts, bad = list[pa.RecordBatch](), dict[int, str]()
    waiting = [(0, count)] if count else []
    while waiting:
        low, high = waiting.pop()
        try:
            parts.append(parse(low, high))
        except InvalidEvents as refusal:
            if refusal.row is None and high - low == 1:
                raise
            found = low if refusal.row is None else low + refusal.row
            behind = found
            if refusal.row is not None:
                bad[found], behind = refusal.reason, found + 1
            middle = (behind + high) // 2
            pieces = ((middle, high), (behind, middle), (low, found))
            waiting += [(first, end) for first, end in pieces if first < end]
    return parts, bad


def joined(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All rows of ``parts``, which have ``schema``, in one batch."""
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=schema)
