"""The kind ``file``: each file once and whole, in the order of the names, on any node."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.formats.lines import LINE_BYTES_MAX
from ha_engine.plugins import DeadLetter, SourceBatch, SourcePlace
from ha_engine.receive.decode import Decoder
from ha_engine.receive.pull import file as file_module
from ha_engine.receive.pull.file import FileOptions, FileSource
from ha_engine.receive.pull.listing import Listing
from ha_engine.receive.pull.validate import validate
from ha_engine.testing import SourceContract
from ha_engine.testing.sink_contract import SCHEMA

ALL = 1_000


def drop(directory: Path, name: str, content: str | bytes) -> Path:
    """Write a file as its producer must: under a draft name, then rename it."""
    directory.mkdir(exist_ok=True)
    draft = directory / f"{name}.part"
    draft.write_bytes(content if isinstance(content, bytes) else content.encode())
    return draft.rename(directory / name)


def ndjson(*ids: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in ids)


class _Files(SourceContract):
    kind = FileSource
    written = 0

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.written += 1
        drop(self.home / "in", f"{self.written:04}", self.text(rows))

    def text(self, rows: list[dict[str, Any]]) -> str:
        raise NotImplementedError


class TestNdjson(_Files):
    def options(self) -> dict[str, Any]:
        (self.home / "in").mkdir(exist_ok=True)
        return {"directory": str(self.home / "in"), "format": "ndjson"}

    def text(self, rows: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)


class TestCsv(_Files):
    def options(self) -> dict[str, Any]:
        (self.home / "in").mkdir(exist_ok=True)
        return {"directory": str(self.home / "in"), "format": "csv", "delimiter": ";"}

    def text(self, rows: list[dict[str, Any]]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=";")
        writer.writerow(["id", "text"])
        writer.writerows((row["id"], row["text"]) for row in rows)
        return text.getvalue()


# -- one source of a directory ---------------------------------------------------------------------


class Reader:
    """A source and the rows and dead letters that it gave."""

    def __init__(
        self, directory: Path, offset: str | None = None, schema: pa.Schema = SCHEMA, **options: Any
    ) -> None:
        options = {"directory": directory, "format": "ndjson", **options}
        self.source = FileSource(FileOptions(**options), SourcePlace("g", "s", "drop", schema))
        self.decoder = Decoder(schema, ALL)
        self.offset = offset
        self.source.open(offset)

    def read(self, rows_max: int = ALL, seconds: float = 0.25) -> SourceBatch | None:
        batch = self.source.read(rows_max, seconds)
        self.offset = self.offset if batch is None else batch.offset
        return batch

    def rest(self) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
        rows, letters = list[dict[str, Any]](), list[DeadLetter]()
        while (batch := self.read()) is not None:
            validated = validate(self.decoder, batch)
            rows += validated.events.to_pylist()
            letters += [*batch.dead_letters, *validated.dead_letters]
        return rows, letters

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rest()[0]]


def test_source_reads_files_in_the_order_of_their_names_and_no_drafts(tmp_path: Path) -> None:
    for name, number in (("b", 2), ("a", 1), ("c", 3), (".d", 9), ("e.part", 9)):
        (tmp_path / name).write_text(ndjson(number))
    (tmp_path / "aa").mkdir()
    (tmp_path / "bb").touch()
    assert Reader(tmp_path).ids() == [1, 2, 3]
    assert Reader(tmp_path, pattern="[bc]", skip=("c",)).ids() == [2]


def test_source_names_a_missing_directory_and_waits_for_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "later")
    with pytest.raises(SourceUnavailable, match="later does not exist"):
        reader.read()
    drop(tmp_path / "later", "a", ndjson(1))
    assert reader.ids() == [1]


def test_source_reads_a_large_file_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "CHUNK_BYTES", 100)
    drop(tmp_path, "a", ndjson(*range(200)))
    reader = Reader(tmp_path)
    sizes = []
    while (batch := reader.read()) is not None:
        sizes.append(len(batch.rows))
    assert sum(sizes) == 200
    assert max(sizes) < 15


def test_line_that_is_too_long_becomes_a_dead_letter(tmp_path: Path) -> None:
    long = b'{"id": 2, "text": "' + b"x" * (2 * LINE_BYTES_MAX + 5) + b'"}\n'
    drop(tmp_path, "a", ndjson(1).encode() + long + ndjson(3).encode())
    rows, [letter] = Reader(tmp_path).rest()
    assert [row["id"] for row in rows] == [1, 3]
    assert letter.place == "a:2"
    assert "longer than" in letter.reason
    assert len(letter.raw) < LINE_BYTES_MAX


def test_last_line_needs_no_end_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    drop(tmp_path, "a", b'\xef\xbb\xbf{"id": 1}\r\n\r\n   \n{"id": 2}\n\n{"id": "x"}\n{"id": 3}')
    rows, [letter] = Reader(tmp_path).rest()
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert letter.place == "a:6"


def test_dead_letter_names_its_file_and_line(tmp_path: Path) -> None:
    drop(
        tmp_path,
        "a",
        b'{"id": 1}\n{"id": 1,\n{"id": 2, "tex": ""}\n\xff\xfe\n[1]\nnull\n{"id": 3}\n',
    )
    rows, letters = Reader(tmp_path).rest()
    assert [row["id"] for row in rows] == [1, 3]
    told = [(letter.place, letter.reason.split(";")[0]) for letter in letters]
    assert [place for place, _ in told] == ["a:2", "a:3", "a:4", "a:5", "a:6"]
    assert told[1] == ("a:3", "the stream has no field 'tex'")
    assert told[2] == ("a:4", "not valid UTF-8")
    assert letters[2].raw == b"\xff\xfe"


def test_source_waits_for_a_file_that_this_node_lacks(tmp_path: Path) -> None:
    drop(tmp_path / "one", "a", ndjson(1, 2, 3))
    reader = Reader(tmp_path / "one")
    reader.read(rows_max=2)
    (tmp_path / "two").mkdir()
    other = Reader(tmp_path / "two", reader.offset)
    with pytest.raises(SourceUnavailable, match="a is missing and was not read to its end"):
        other.read()
    drop(tmp_path / "two", "a", ndjson(1, 2, 3))
    assert other.ids() == [3]


def test_finished_file_may_be_deleted(tmp_path: Path) -> None:
    gone = drop(tmp_path, "a", ndjson(1, 2))
    reader = Reader(tmp_path)
    assert reader.ids() == [1, 2]
    gone.unlink()
    drop(tmp_path, "b", ndjson(3))
    assert Reader(tmp_path, reader.offset).ids() == [3]


@pytest.mark.parametrize("now", [ndjson(1, 2), ndjson(9, 2, 3), ndjson(1, 2, 3, 4)])
def test_a_file_that_changed_is_refused_until_it_is_named_in_skip(tmp_path: Path, now: str) -> None:
    drop(tmp_path, "a", ndjson(1, 2, 3))
    drop(tmp_path, "b", ndjson(5))
    reader = Reader(tmp_path)
    reader.read(rows_max=2)
    drop(tmp_path, "a", now)
    with pytest.raises(SourceRefused, match="a has changed since the node read it up to byte 20"):
        Reader(tmp_path, reader.offset).read()
    assert Reader(tmp_path, reader.offset, skip=("a",)).ids() == [5]


@pytest.mark.parametrize("now", ["", ndjson(*range(30_001))], ids=["cut", "longer"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, now: str) -> None:
    path = drop(tmp_path, "a", ndjson(*range(30_000)))
    reader = Reader(tmp_path)
    reader.read(rows_max=2)
    path.write_text(now)
    with pytest.raises(SourceRefused, match="a has changed since the node read it up to byte 20"):
        reader.rest()


def test_file_with_a_header_alone_does_not_block_the_source(tmp_path: Path) -> None:
    drop(tmp_path, "a", "id,text\n")
    drop(tmp_path, "b", "id,text\n1,x\n")
    assert Reader(tmp_path, format="csv").ids() == [1]


@pytest.mark.parametrize("first", ['7,5" pipe', '7,"pipe'], ids=["within a cell", "around one"])
def test_stray_quote_invalidates_at_most_its_own_line(tmp_path: Path, first: str) -> None:
    rows = "".join(f"{number},x\n" for number in range(400))
    drop(tmp_path, "a", f'id,text\n{first}\n{rows}8,6" pipe\n9,"two\nlines"\n')
    found, letters = Reader(tmp_path, format="csv").rest()
    good = [7] if first.endswith(" pipe") else []
    assert [row["id"] for row in found] == [*good, *range(400), 8, 9]
    assert found[-1]["text"] == "two\nlines"
    assert [letter.place for letter in letters] == ([] if good else ["a:2"])


def test_line_that_is_too_long_does_not_change_the_quoting_of_others(tmp_path: Path) -> None:
    long = '0,"' + "x" * LINE_BYTES_MAX + '"\n'
    rows = "".join(f"{number},x\n" for number in range(300))
    drop(tmp_path, "a", f"id,text\n{long}{rows}{long}")
    found, letters = Reader(tmp_path, format="csv").rest()
    assert [row["id"] for row in found] == [*range(300)]
    assert [letter.place for letter in letters] == ["a:2", "a:303"]


def test_dead_letters_count_for_the_size_of_a_batch(tmp_path: Path) -> None:
    drop(tmp_path, "a", "id,text\n" + "x\n" * 25)
    reader = Reader(tmp_path, format="csv")
    sizes = [len(batch.dead_letters) for _ in range(3) if (batch := reader.read(rows_max=10))]
    assert sizes == [10, 10, 5]


def test_source_skips_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "gone")
    drop(tmp_path, "c", ndjson(3))
    assert Reader(tmp_path).ids() == [3]


def test_empty_file_filled_too_late_becomes_a_dead_letter(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    drop(tmp_path, "b", ndjson(2))
    reader = Reader(tmp_path)
    assert reader.ids() == [2]
    (tmp_path / "a").write_text(ndjson(1))
    assert [letter.place for letter in reader.rest()[1]] == ["a"]


def test_file_that_arrives_too_late_for_its_name_becomes_a_dead_letter(tmp_path: Path) -> None:
    drop(tmp_path, "b", ndjson(2))
    reader = Reader(tmp_path)
    assert reader.ids() == [2]
    drop(tmp_path, "a", ndjson(1))
    drop(tmp_path, "c", ndjson(3))
    rows, [letter] = reader.rest()
    assert [row["id"] for row in rows] == [3]
    assert (letter.place, letter.reason) == (
        "a",
        "the file appeared after b was read; give the file a name that sorts after b",
    )
    assert reader.rest() == ([], [])


def test_file_missed_by_a_listing_is_read_before_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A listing begins. 2. a appears, then b. 3. The listing sees b but not a, which is
    allowed."""
    seen = [{"b": 5}, {"a": 5, "b": 5}]
    monkeypatch.setattr(Listing, "_list", lambda self: seen.pop(0))
    listing = Listing(tmp_path, "*", ())
    listing.look("")
    assert listing.next_after("") == "a"
    assert listing.next_after("a") == "b"
    assert not seen


# -- CSV -------------------------------------------------------------------------------------------

TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("part", pa.float64()),
        pa.field("price", pa.decimal128(6, 2)),
        pa.field("good", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def test_cells_of_csv_become_the_types_of_the_stream(tmp_path: Path) -> None:
    header = "\ufeffid,name,note,at,part,price,good,tags\r\n"
    full = '1,"a ""b"", c","two\nlines",2026-01-02T03:04:05Z,1e3,12.50,TRUE,"[""x"", ""y""]"\r\n'
    drop(tmp_path, "a", header + full + "2,,,,,,,\n")
    rows, letters = Reader(tmp_path, format="csv", schema=TYPES).rest()
    assert letters == []
    assert (rows[0]["name"], rows[0]["note"]) == ('a "b", c', "two\nlines")
    assert (rows[0]["part"], str(rows[0]["price"]), rows[0]["good"]) == (1000.0, "12.50", True)
    assert (rows[0]["at"].isoformat(), rows[0]["tags"]) == ("2026-01-02T03:04:05+00:00", ["x", "y"])
    empty = dict.fromkeys(("note", "at", "part", "price", "good", "tags"))
    assert rows[1] == {"id": 2, "name": "", **empty}


def test_dead_letter_of_a_bad_csv_row_names_its_line(tmp_path: Path) -> None:
    lines = ["id;text", "1;a", "x;b", "3", "4;d;e", '5;"f', 'g"', '6;"h', "7;i", "NaN;j"]
    drop(tmp_path, "a", "\n".join(lines))
    rows, letters = Reader(tmp_path, format="csv", delimiter=";").rest()
    assert [(row["id"], row["text"]) for row in rows] == [(1, "a"), (5, "f\ng"), (7, "i")]
    told = sorted((letter.place, letter.reason) for letter in letters)
    assert [place for place, _ in told] == ["a:10", "a:3", "a:4", "a:5", "a:8"]
    assert told[2] == ("a:4", "the row has 1 fields, but the header has 2")
    assert told[1] == ("a:3", """field 'id' is "x", expected a whole number of 64 bits""")
    assert told[4][1] == "not valid CSV: unexpected end of data"


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_source_gives_every_row_once_however_often_it_is_reopened(
    tmp_path: Path, form: str
) -> None:
    chance, expected, number = random.Random(11), list[tuple[int, str]](), 0
    for name in range(4):
        rows = [(number + n, f'"{"x" * chance.randint(0, 9)}",\n;') for n in range(30)]
        number += 30
        expected += rows
        if form == "csv":
            text = io.StringIO()
            csv.writer(text).writerows([("id", "text"), *rows])
            drop(tmp_path, f"{name}", text.getvalue())
        else:
            lines = [json.dumps({"id": one, "text": text}) for one, text in rows]
            drop(tmp_path, f"{name}", "\n".join(lines))
    found, offset = list[tuple[int, str]](), None
    while len(found) < len(expected):
        reader = Reader(tmp_path, offset, format=form)
        for _ in range(chance.randint(1, 3)):
            batch = reader.read(rows_max=chance.randint(1, 20))
            if batch is not None:
                assert not batch.dead_letters
                found += [(row["id"], row["text"]) for row in map(json.loads, batch.rows)]
        offset = reader.offset
    assert found == expected
