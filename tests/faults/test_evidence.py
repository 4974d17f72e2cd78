"""The evidence of the fault matrix from journals that the nodes have trimmed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.journal import Journal
from ha_engine.journal.segment import segment_paths
from ha_engine.types import Events, Mark, Position, Record
from tests.e2e.frames import shared_frames
from tests.faults.matrix.evidence import EVENTS, batches_of, records_of

SEGMENT_BYTES, BATCHES = 64 << 10, 40
TEXT = "x" * 2000
WHOLE = {number: ((2 * number - 1, TEXT), (2 * number, TEXT)) for number in range(1, BATCHES + 1)}


def records() -> Iterator[Record]:
    """Yield two events and a mark for each batch."""
    sequences = itertools.count(1)
    for number, rows in WHOLE.items():
        for row in rows:
            batch = pa.RecordBatch.from_pylist([{"id": row[0], "text": row[1]}], EVENTS)
            body = Events("events", 1, 0)
            payload = batch.serialize().to_pybytes()
            yield Record(Position(1, at := next(sequences)), 0, body, payload)
        yield Record(Position(1, next(sequences)), 0, Mark("copies", number, at))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "a", group="test", segment_size=SEGMENT_BYTES)
    journal.append(list(records()))
    journal.sync()
    yield journal
    journal.close()


def keep(tmp_path: Path) -> list[Path]:
    (tmp_path / "kept").mkdir()
    for path in segment_paths(tmp_path / "a"):
        (tmp_path / "kept" / path.name).hardlink_to(path)
    return segment_paths(tmp_path / "kept")


def test_batches_of_a_trimmed_journal_come_from_the_kept_segments(
    tmp_path: Path, journal: Journal
) -> None:
    kept = keep(tmp_path)
    assert len(kept) > 2
    journal.trim_before(60)
    own = segment_paths(tmp_path / "a")
    assert len(own) < len(kept)
    assert batches_of(records_of(kept, own)) == WHOLE
    with pytest.raises(AssertionError, match="record 1 is neither"):
        batches_of(records_of([], own))


def test_frames_are_compared_from_the_first_record_that_both_have(
    tmp_path: Path, journal: Journal
) -> None:
    other = Journal.open(tmp_path / "b", group="test", segment_size=2 * SEGMENT_BYTES)
    other.append(list(records()))
    other.sync()
    journal.trim_before(60)
    journals = {name: segment_paths(tmp_path / name) for name in ("a", "b")}
    frames = shared_frames(journals)
    assert frames["a"] == frames["b"]
    assert 0 < len(frames["a"]) < sum(path.stat().st_size for path in journals["b"])
    other.close()
