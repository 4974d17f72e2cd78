"""One rule for CSV, whether a producer sends the file or a source reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ha_engine.client.sources import open_source
from ha_engine.client.transport import RemoteColumn
from ha_engine.errors import InvalidEvents
from ha_engine.formats.csv_rows import CsvColumn, CsvRows
from ha_engine.formats.json_rows import BadRow

HEADER = b"name,note,price,at,good,tags,more\n"
COLUMNS = [
    ("name", "string", False),
    ("note", "string", True),
    ("price", "double", True),
    ("at", "timestamp[us, tz=UTC]", True),
    ("good", "bool", True),
    ("tags", "list<item: string>", True),
]


def event_of(row: bytes) -> object:
    return json.loads(CsvRows(HEADER, [CsvColumn(*one) for one in COLUMNS]).to_json(row))


@pytest.mark.parametrize(
    ("row", "event"),
    [
        (b",,,,,,\n", ["", None, None, None, None, None, ""]),
        (b"NA,NA,NA,NA,NA,NA,NA\r\n", ["NA", "NA", None, None, None, None, "NA"]),
        (b'a,b,1.5,x,TRUE,"[""c""]",d', ["a", "b", 1.5, "x", True, ["c"], "d"]),
        (b'"a\nb",,1_0,,yes,[,', ["a\nb", None, "1_0", None, "yes", "[", ""]),
    ],
)
def test_a_row_becomes_an_event_of_the_columns_types(row: bytes, event: list[object]) -> None:
    names = HEADER.decode().strip().split(",")
    assert event_of(row) == dict(zip(names, event, strict=True))


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        (b"a,b,a", b"1,2,3", "names a column twice"),
        (b"a,b", b"1", "the row has 1 fields, but the header has 2"),
        (b"a,b", b'"1,2', "not valid CSV"),
        (b"a,b", b"\xff,2", "not valid UTF-8"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_refused(
    header: bytes, row: bytes, reason: str
) -> None:
    with pytest.raises(BadRow, match=reason):
        CsvRows(header, []).to_json(row)


def test_a_producers_file_has_the_same_rules_and_exact_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(HEADER + b'"a\nb",,NA,,,,\n\nc,,2,,,,\nd\n')
    columns = [RemoteColumn(*one) for one in COLUMNS]
    parts = open_source(path, "auto").parts(1, lambda: columns)
    first, second = next(parts), next(parts)
    assert [*first.numbers, *second.numbers] == [2, 5]
    assert json.loads(first.payload.body) == event_of(b'"a\nb",,NA,,,,')
    with pytest.raises(InvalidEvents, match="line 6: the row has 1 fields"):
        next(parts)
