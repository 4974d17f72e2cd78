"""The base: the file that replaces trimmed records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import JournalDamaged
from ha_engine.receive.offsets import OffsetTable, SourceOffset
from ha_engine.receive.producers import PRODUCERS_SCHEMA, ProducerTable
from ha_engine.snapshot import base_file
from ha_engine.types import (
    Base,
    Deployed,
    Events,
    Mark,
    Position,
    Pulled,
    QueryBase,
    QueryVersion,
    Shadow,
    Submission,
)

VERSION = QueryVersion("delays", "ab", Mark("delays", 0, 0))
BASE = Base(
    Position(3, 100),
    (Position(1, 1), Position(3, 50)),
    (Position(3, 50),),
    "cd",
    (
        QueryBase(VERSION, 2, None, Mark("delays", 0, 0), Mark("delays", 7, 99)),
        QueryBase(
            QueryVersion("alerts", "ef", Mark("alerts", 3, 20)),
            20,
            5,
            Mark("alerts", 3, 20),
            Mark("alerts", 9, 100),
            (("board", 8), ("archive", 2)),
            ("archive",),
            (Mark("alerts", 9, 100),),
        ),
    ),
    (("alerts", 11),),
)


def producers() -> pa.Table:
    table = ProducerTable(10, 3)
    table.apply(Position(1, 5), Events("flights", 2, 0, (Submission("p", 1, "0f" * 16, 2),)))
    return table.to_table()


OFFSETS = (("flights", "drop", '{"file":"a"}', 7, 1, 3), ("weather", "drop", "", 0, 2, 1))
STANDING = base_file.JournalBase(BASE, producers(), OFFSETS)


def test_base_file_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "base.arrow"
    assert base_file.load(path) is None
    base_file.store(path, base_file.encode(STANDING))
    assert base_file.load(path) == STANDING
    empty = pa.table([[]] * len(PRODUCERS_SCHEMA), schema=PRODUCERS_SCHEMA)
    base_file.store(path, base_file.encode(base_file.JournalBase(Base(), empty)))
    assert base_file.load(path) == base_file.JournalBase(Base(), empty)
    assert [one.name for one in tmp_path.iterdir()] == ["base.arrow"]


def test_base_file_with_a_shadow_has_a_version_of_its_own(tmp_path: Path) -> None:
    shadow = Shadow("delays", 2, Mark("delays", 7, 20), "new", "files")
    deployed = Deployed(2, "id", "name", "alice", 0, "files", None, shadow)
    path, versions = tmp_path / "base.arrow", list[int]()
    for one in (deployed, replace(deployed, shadow=None)):
        found = base_file.JournalBase(replace(BASE, deployed=one), producers())
        base_file.store(path, base_file.encode(found))
        assert base_file.load(path) == found
        with pa.ipc.open_file(pa.py_buffer(path.read_bytes()[base_file.DIGEST_BYTES :])) as reader:
            tree = json.loads(reader.schema.metadata[b"ha_engine.base"])
        versions.append(tree["version"])
    assert versions == [base_file.VERSION_WITH_SHADOWS, base_file.VERSION_WITH_DEPLOYED]


def test_base_file_of_long_producer_ids_is_small() -> None:
    table = ProducerTable(20, 64)
    for number in range(20 * 64):
        digest = hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest()
        request = Submission(f"{number % 20:0128}", number, digest, 1)
        table.apply(Position(1, number), Events("flights", 1, 0, (request,)))
    rows = table.to_table()
    assert len(base_file.encode(base_file.JournalBase(Base(), rows))) < rows.nbytes / 3


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_incomplete_base_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "base.arrow"
    path.write_bytes(base_file.encode(STANDING)[:cut])
    with pytest.raises(JournalDamaged, match=r"base\.arrow is damaged"):
        base_file.load(path)


@given(st.data())
def test_flipped_bit_of_a_base_file_is_detected(data: st.DataObject) -> None:
    damaged = bytearray(base_file.encode(STANDING))
    at = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(ValueError, match="digest"):
        base_file.decode(bytes(damaged))


def test_base_file_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_file, "VERSION_WITH_OFFSETS", 9)
    newer = base_file.encode(STANDING)
    monkeypatch.undo()
    (tmp_path / "base.arrow").write_bytes(newer)
    with pytest.raises(JournalDamaged, match="another format version"):
        base_file.load(tmp_path / "base.arrow")


def test_base_file_without_offsets_reads_as_that_of_an_older_engine() -> None:
    """A base without offsets is written so that the older engine can read it."""
    encoded = base_file.encode(base_file.JournalBase(BASE, producers()))
    with pa.ipc.open_file(pa.py_buffer(encoded[base_file.DIGEST_BYTES :])) as reader:
        table = reader.read_all()
    tree = json.loads(table.schema.metadata[b"ha_engine.base"])
    assert tree["version"] == 1
    del tree["offsets"]
    old = table.replace_schema_metadata({b"ha_engine.base": json.dumps(tree).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, old.schema) as writer:
        writer.write_table(old)
    content = sink.getvalue().to_pybytes()
    digest = hashlib.blake2b(content, digest_size=base_file.DIGEST_BYTES).digest()
    assert base_file.decode(digest + content) == base_file.JournalBase(BASE, producers(), ())


def test_the_file_keeps_its_keys_while_its_version_stays() -> None:
    """Nodes read files of earlier builds, and snapshots of the other node."""
    encoded = base_file.encode(STANDING)
    with pa.ipc.open_file(pa.py_buffer(encoded[base_file.DIGEST_BYTES :])) as reader:
        tree = json.loads(reader.schema.metadata[b"ha_engine.base"])
    assert (tree["version"], list(tree)) == (
        2,
        ["version", "position", "epochs", "forced", "application", "queries", "skips", "offsets"],
    )
    assert list(tree["queries"][0]) == [
        *("version", "lineage", "carried_on", "initial", "last"),
        *("published", "unheard", "ahead"),
    ]


def test_offsets_of_the_base_equal_those_of_the_records() -> None:
    table, other = OffsetTable(), OffsetTable()
    pulled = (Pulled("drop", "one", 3, 1), Pulled("other", "x", 2))
    table.apply(Events("flights", 5, 0, (), pulled))
    other.load_base(table.to_rows())
    for one in (table, other):
        one.apply(Events("flights", 1, 0, (), (Pulled("drop", "two", 1),)))
        assert one.find("flights", "drop") == SourceOffset("two", 4, 1, 2)
        assert one.find("flights", "other") == SourceOffset("x", 2, 0, 1)
        assert one.find("weather", "drop") == SourceOffset()
