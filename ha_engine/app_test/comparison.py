"""Compare the rows of a query with the expected ones.

Expected values have the form of an event's values in JSON, and the decoder of events reads them
with the types of the query's columns. Rows are equal if their named columns are equal.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from ha_engine.app_test.cases import BATCH, END, Expectation, Place
from ha_engine.app_test.events import decoded, parts_of
from ha_engine.app_test.run import QueryOutput
from ha_engine.client.payload import Form, as_line
from ha_engine.client.sources import Part
from ha_engine.errors import ApplicationError, InvalidEvents
from ha_engine.formats.values import json_text, rows_of
from ha_engine.query.application import AggregationSinkSpec, OutputMode, QuerySpec
from ha_engine.query.file_words import nearest
from ha_engine.receive.decode import Decoder, Format

DIGITS = 9
"""Two floating-point numbers are equal if so many of their digits are."""
_ROWS_MAX = 1 << 31
PAIRED_MAX = 200
"""More missing or unexpected rows than that are not paired, which takes time for each pair."""

Row: TypeAlias = dict[str, Any]
"""A row of a query or an expected row, with Python's values."""


@dataclass(frozen=True, slots=True)
class Near:
    """An expected row that is missing, an unexpected row like it, and the columns that differ."""

    expected: Row
    actual: Row
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """How the rows of a query differ from the expected ones.

    ``columns`` are the compared columns. ``actual`` are all rows of the query, with all columns.
    ``reordered`` has the first row that is at another place than expected, if the rows are equal
    otherwise. ``error`` says why the query failed.
    """

    expectation: Expectation
    columns: tuple[str, ...]
    actual: tuple[Row, ...]
    missing: tuple[Row, ...] = ()
    unexpected: tuple[Row, ...] = ()
    near: tuple[Near, ...] = ()
    reordered: Near | None = None
    error: str | None = None

    @property
    def is_none(self) -> bool:
        found = self.missing, self.unexpected, self.near, self.reordered, self.error
        return not any(found)


def plain(value: Any) -> Any:
    """The value as an event has it in JSON, or as text if its type has no form in JSON."""
    try:
        return json.loads(json_text(value))
    except TypeError:
        return str(value)


def compare(expectation: Expectation, spec: QuerySpec, output: QueryOutput) -> Difference:
    """Compare the output of a query. Raises BadTestFile if an expected row does not fit it."""
    columns, expected = _expected(expectation, output.schema)
    actual = tuple(_actual(expectation, spec, output))
    if output.error is not None:
        return Difference(expectation, columns, actual, error=output.error)
    if expectation.ordered:
        moved = _first_moved(columns, expected, actual)
        if moved is not None and _counted(columns, expected) == _counted(columns, actual):
            return Difference(expectation, columns, actual, reordered=moved)
    missing = _without(columns, expected, actual)
    unexpected = _without(columns, actual, expected)
    near = tuple(_paired(columns, _key(expectation, spec), missing, unexpected))
    return Difference(
        expectation,
        columns,
        actual,
        tuple(row for row in missing if not any(row is one.expected for one in near)),
        tuple(row for row in unexpected if not any(row is one.actual for one in near)),
        near,
    )


# -- expected rows ---------------------------------------------------------------------------------


def _expected(expectation: Expectation, schema: pa.Schema) -> tuple[tuple[str, ...], list[Row]]:
    """The compared columns, and the expected rows."""
    if expectation.file is not None:
        return _of_file(expectation, schema)
    rows, place = expectation.rows or (), expectation.rows_place
    columns = tuple(rows[0]) if rows else (*schema.names,)
    for number, row in enumerate(rows):
        _require_columns(place.at(number), row, columns, schema)
    plain = [{name: value for name, value in row.items() if name != BATCH} for row in rows]
    named = [name for name in columns if name != BATCH]
    found = _decoded(plain, _decoder(named, schema, place), place) if named else plain
    for number, row in enumerate(rows):
        if BATCH in row:
            found[number][BATCH] = _batch_of(row[BATCH], place.at(number, BATCH))
    return columns, found


def _require_columns(
    place: Place, row: Mapping[str, Any], columns: Sequence[str], schema: pa.Schema
) -> None:
    for name in row:
        if name != BATCH and name not in schema.names:
            raise place.at(name).bad(
                f"the query has no column {name!r}{nearest(name, [*schema.names])}"
            )
    if not row:
        raise place.bad("the row names no column; name at least one")
    if odd := sorted(set(row) ^ set(columns)):
        raise place.bad(
            f"only one of this row and the first row names {', '.join(odd)}; "
            "name the same columns in all rows, with null for a null"
        )


def _decoder(columns: Sequence[str], schema: pa.Schema, place: Place) -> Decoder:
    fields = [schema.field(name).with_nullable(True) for name in columns]
    try:
        return Decoder(pa.schema(fields), _ROWS_MAX)
    except ApplicationError:
        raise place.bad(
            "a column has a type without a form in JSON; name other columns only, or cast it"
        ) from None


def _decoded(rows: list[Row], decoder: Decoder, place: Place) -> list[Row]:
    if not rows:
        return []
    try:
        body = b"\n".join(map(as_line, rows))
        return rows_of(pa.Table.from_batches([decoder.decode(body, Format.NDJSON)]))
    except InvalidEvents as error:
        raise (place if error.row is None else place.at(error.row)).bad(error.reason) from None


def _batch_of(value: object, place: Place) -> int | str:
    match value:
        case int() if value >= 1 and not isinstance(value, bool):
            return value
        case str() if value == END:
            return value
        case _:
            raise place.bad(f"must be the number of a batch, from 1, or {END}")


def _of_file(expectation: Expectation, schema: pa.Schema) -> tuple[tuple[str, ...], list[Row]]:
    assert expectation.file is not None, "the rows are not in a file"
    place = expectation.place
    parts = [*parts_of(expectation.file, schema, place)[0]]
    named = {name for part in parts for name in _names_in(part)}
    columns = tuple(name for name in schema.names if name in named or not parts)
    # A file may name a column that the query lacks, which the decoder refuses.
    decoder = _decoder(columns, schema, place)
    batches = [decoded(part, decoder, place) for part in parts]
    return columns, rows_of(pa.Table.from_batches(batches, decoder.schema))


def _names_in(part: Part) -> Iterable[str]:
    """The columns that the rows of a part name."""
    match part.payload.form:
        case Form.NDJSON:
            return [name for line in part.payload.body.split(b"\n") for name in _keys_in(line)]
        case Form.ARROW:
            names: list[str] = pa.ipc.open_stream(part.payload.body).schema.names
            return names


def _keys_in(line: bytes) -> Iterable[str]:
    try:
        row = json.loads(line)
    except ValueError:
        return ()  # the decoder says what is wrong
    return row if isinstance(row, dict) else ()


# -- actual rows -----------------------------------------------------------------------------------


def _actual(expectation: Expectation, spec: QuerySpec, output: QueryOutput) -> Iterator[Row]:
    """The rows of the query's table, or of every batch, each with its batch as BATCH."""
    rows = list[Row]()
    for number, table in output.batches.items():
        if spec.output_mode is OutputMode.COMPLETE and not expectation.changes:
            rows.clear()
        batch = number if number <= output.inputs else END
        rows += [{**row, BATCH: batch} for row in rows_of(table)]
    key = _key(expectation, spec)
    if key and spec.output_mode is OutputMode.UPDATE and not expectation.changes:
        _require_key(expectation, key, output.schema)
        rows = [*{_canonical(key, row): row for row in rows}.values()]
    yield from rows


def _key(expectation: Expectation, spec: QuerySpec) -> tuple[str, ...]:
    """The key of the test file, or else of the first sink of the query that has one."""
    tables = (sink for sink in spec.sinks if not isinstance(sink, AggregationSinkSpec))
    return expectation.key or next((sink.key for sink in tables if sink.key), ())


def _require_key(expectation: Expectation, key: tuple[str, ...], schema: pa.Schema) -> None:
    for name in key:
        if name not in schema.names:
            raise expectation.place.at("key").bad(
                f"the query has no column {name!r}{nearest(name, [*schema.names])}"
            )


# -- differences -----------------------------------------------------------------------------------


def _counted(columns: Sequence[str], rows: Sequence[Row]) -> Counter[Hashable]:
    return Counter(_canonical(columns, row) for row in rows)


def _without(columns: Sequence[str], rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """The rows that remain if each of ``others`` takes one equal row away."""
    taken, left = _counted(columns, others), list[Row]()
    for row in rows:
        key = _canonical(columns, row)
        if taken[key]:
            taken[key] -= 1
        else:
            left.append(row)
    return left


def _first_moved(
    columns: Sequence[str], expected: Sequence[Row], actual: Sequence[Row]
) -> Near | None:
    for wanted, found in zip(expected, actual, strict=False):
        if differing := _differing(columns, wanted, found):
            return Near(wanted, found, differing)
    return None


def _paired(
    columns: Sequence[str], key: Sequence[str], missing: Sequence[Row], unexpected: Sequence[Row]
) -> Iterator[Near]:
    """Pair missing and unexpected rows with an equal key, or with at least half of the columns
    equal."""
    if max(len(missing), len(unexpected)) > PAIRED_MAX:
        return
    near = list[tuple[bool, int, int, int]]()
    for number, row in enumerate(missing):
        for other, found in enumerate(unexpected):
            differing = _differing(columns, row, found)
            other_key = not key or not set(key) <= set(columns) - set(differing)
            if not other_key or 2 * len(differing) <= len(columns):
                near.append((other_key, len(differing), number, other))
    near.sort()
    rows, others = set[int](), set[int]()
    for *_, number, other in near:
        if number not in rows and other not in others:
            rows.add(number)
            others.add(other)
            row, found = missing[number], unexpected[other]
            yield Near(row, found, _differing(columns, row, found))


def _differing(columns: Sequence[str], row: Row, other: Row) -> tuple[str, ...]:
    return tuple(name for name in columns if _equal_form(row[name]) != _equal_form(other[name]))


def _canonical(columns: Sequence[str], row: Row) -> Hashable:
    return tuple(_equal_form(row[name]) for name in columns)


def _equal_form(value: Any) -> Hashable:
    """A form of a value that is the same for equal values."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return float(f"{value:.{DIGITS}g}") + 0.0  # without the sign of -0.0
        case dict():
            return tuple((name, _equal_form(part)) for name, part in value.items())
        case list():
            return tuple(map(_equal_form, value))
        case _:
            found: Hashable = value
            return found
