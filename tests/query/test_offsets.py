"""A batch's number is the mark that all its sources name, read from Spark's own log
(RULES.md#r18)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.offsets import (
    SourcesDisagree,
    add_sources,
    mark_of_batch,
    note_watermarks,
    partitions_of_batch,
    unfinished_mark,
    watermarks_before,
)
from ha_engine.query.source_reader import split


def write_offsets(checkpoint: Path, batch: int, *offsets: str) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', *offsets])
    (checkpoint / "offsets" / str(batch)).write_text(text)


def test_sources_at_one_mark_give_the_batch_its_number(tmp_path: Path) -> None:
    write_offsets(tmp_path, 4, '{"mark":7,"sequence":90}', '{"mark":7,"sequence":90}')
    assert mark_of_batch(tmp_path, 4) == 7


@pytest.mark.parametrize(
    "offsets", [('{"mark":7,"sequence":90}', '{"mark":8,"sequence":95}'), ("-", "-")]
)
def test_sources_at_different_marks_stop_the_query(
    tmp_path: Path, offsets: tuple[str, ...]
) -> None:
    write_offsets(tmp_path, 4, *offsets)
    with pytest.raises(SourcesDisagree, match="batch 4"):
        mark_of_batch(tmp_path, 4)


def test_batch_in_flight_is_the_one_started_and_not_finished(tmp_path: Path) -> None:
    assert unfinished_mark(tmp_path) == 0
    write_offsets(tmp_path, 9, '{"mark":7,"sequence":90}')
    write_offsets(tmp_path, 10, '{"mark":8,"sequence":95}')
    (tmp_path / "offsets" / ".10.crc").write_text("")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "9").write_text("v1\n{}")
    assert unfinished_mark(tmp_path) == 8
    (tmp_path / "commits" / "10").write_text("v1\n{}")
    assert unfinished_mark(tmp_path) == 0


def test_source_that_a_query_gets_continues_at_the_mark_of_the_others(tmp_path: Path) -> None:
    write_offsets(tmp_path, 9, '{"mark":7,"sequence":90}')
    write_offsets(tmp_path, 10, '{"mark":8,"sequence":95,"at":{"t":{"0":3}}}')
    kept = tmp_path / "snapshot"
    kept.hardlink_to(tmp_path / "offsets" / "10")
    (tmp_path / "offsets" / ".10.crc").write_text("of the former bytes")
    add_sources(tmp_path, 2)
    assert lines(tmp_path / "offsets" / "9")[2:] == [{"mark": 7, "sequence": 90}] * 2
    assert lines(tmp_path / "offsets" / "10")[2:] == [{"mark": 8, "sequence": 95}] * 2
    assert lines(tmp_path / "offsets" / "10")[1] == {"batchWatermarkMs": 0}
    assert len(lines(kept)) == 3
    assert not (tmp_path / "offsets" / ".10.crc").exists()
    before = (tmp_path / "offsets" / "10").stat().st_ino
    add_sources(tmp_path, 2)
    assert (tmp_path / "offsets" / "10").stat().st_ino == before


def lines(log: Path) -> list[Any]:
    version, *others = log.read_text().splitlines()
    return [version, *map(json.loads, others)]


def test_a_range_is_split_without_gap_or_overlap() -> None:
    for pieces in range(1, 8):
        runs = split(11, 29, pieces)
        assert [n for low, high in runs for n in range(low, high + 1)] == list(range(11, 30))
        assert len(runs) == pieces


def test_watermarks_of_the_streams_are_noted_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    heading = ["v1", '{"batchWatermarkMs":5,"conf":{"spark.sql.shuffle.partitions":"2"}}']
    for batch in (4, 5, 6, 7):
        lines = "\n".join([*heading, '{"mark":7,"sequence":90}'])
        (tmp_path / "offsets" / str(batch)).write_text(lines)
    (tmp_path / "offsets" / ".5.crc").write_text("of the former bytes")
    kept = tmp_path / "snapshot"
    kept.hardlink_to(tmp_path / "offsets" / "5")
    note_watermarks(tmp_path, 5, "digest", [None, 1_357_000_000_000, -3])

    assert [watermarks_before(tmp_path, batch, "digest") for batch in (4, 5, 6, 7, 8)] == [
        [],
        [None, 1_357_000_000_000, -3],
        [None, 1_357_000_000_000, -3],
        [],
        [],
    ]
    assert watermarks_before(tmp_path, 5, "of another query") == []
    assert mark_of_batch(tmp_path, 5) == 7
    assert partitions_of_batch(tmp_path, 5) == 2
    assert "watermarks" not in kept.read_text()
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["4", "5", "6", "7"]
