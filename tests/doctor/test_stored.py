"""The doctor's checks of the files of a journal and an outbox, whole and damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.config import Config
from ha_engine.doctor import stored
from ha_engine.doctor.finding import State
from ha_engine.errors import DiskFailed, ForeignJournal, JournalDamaged
from ha_engine.outbox.batch_file import digest_of_table, write_batch_file
from ha_engine.outbox.inspection import survey
from ha_engine.outbox.query_outbox import with_checksum
from tests.doctor.configs import config_in, quiet
from tests.journal.samples import flip, opened, some_records, written_journal

ROWS = pa.table({"id": [1, 2], "text": ["one", "two"]})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path)


@pytest.fixture
def segments(config: Config) -> list[Path]:
    """Return the segments of a journal in the data directory of the config."""
    return written_journal(config.node.data_dir / "journal", some_records(60), segment_size=2048)


@pytest.fixture
def place(config: Config) -> Path:
    """Return the directory of a query with the batches 4 to 6."""
    place = config.node.data_dir / "outbox" / "copies"
    place.mkdir(parents=True)
    for number in (4, 5, 6):
        write_batch_file(place / f"{number}.arrow", ROWS, query="copies", number=number)
        (place / f"{number}.digest").write_bytes(with_checksum(digest_of_table(ROWS)))
    return place


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_new_data_directory_passes(config: Config) -> None:
    assert stored.journal(config, quiet).text.endswith("has no journal yet")
    assert stored.outbox(config, quiet).text.endswith("does not exist yet")
    assert stored.high_water(config.node.data_dir).state is State.OK
    assert not config.node.data_dir.exists()


def test_a_whole_journal_passes_with_its_progress(config: Config, segments: list[Path]) -> None:
    said: list[str] = []
    before = content(config.node.data_dir)
    finding = stored.journal(config, said.append)
    assert finding.state is State.OK
    assert finding.text.startswith("60 records, ")
    assert said[-1] == f"{len(segments)} of {len(segments)} segments"
    assert content(config.node.data_dir) == before


def test_a_journal_that_a_node_writes_passes(config: Config) -> None:
    journal = opened(config.node.data_dir / "journal")
    journal.append(some_records(3))
    assert stored.journal(config, quiet).state is State.OK
    journal.close()


def test_a_torn_tail_passes_since_the_next_start_repairs_it(
    config: Config, segments: list[Path]
) -> None:
    os.truncate(segments[-1], segments[-1].stat().st_size - 1)
    finding = stored.journal(config, quiet)
    assert (finding.state, "its last record is torn" in finding.text) == (State.OK, True)


def test_a_flipped_bit_inside_the_journal_is_named(config: Config, segments: list[Path]) -> None:
    flip(segments[1], segments[1].stat().st_size // 2)
    with pytest.raises(JournalDamaged, match=rf"{segments[1].name} is damaged at byte"):
        stored.journal(config, quiet)


def test_a_missing_segment_is_named(config: Config, segments: list[Path]) -> None:
    segments[1].unlink()
    with pytest.raises(JournalDamaged, match="the segment begins with record"):
        stored.journal(config, quiet)


def test_a_journal_without_its_base_fails(config: Config, segments: list[Path]) -> None:
    segments[0].unlink()
    finding = stored.journal(config, quiet)
    assert finding.state is State.FAILED
    assert "but its base ends with record 0" in finding.text


def test_a_journal_of_another_group_is_named(config: Config, segments: list[Path]) -> None:
    other = config.model_copy(update={"group": "other"})
    with pytest.raises(ForeignJournal, match="belongs to group test, not to other"):
        stored.journal(other, quiet)


def test_a_whole_outbox_passes(config: Config, place: Path) -> None:
    before = content(place)
    (place / "pending").mkdir()
    finding = stored.outbox(config, quiet)
    assert finding.state is State.OK
    assert finding.text.startswith("3 batches, ")
    assert content(place) == before


def test_a_flipped_bit_of_a_batch_is_named(config: Config, place: Path) -> None:
    flip(place / "5.arrow", (place / "5.arrow").stat().st_size // 2)
    finding = stored.outbox(config, quiet)
    assert finding.state is State.FAILED
    assert f"{place}/5.arrow cannot be read (its checksum is wrong)" in finding.text
    assert finding.remedy.startswith("stop the node, run 'ha-engine reinit node-a'")


def test_a_batch_with_the_digest_of_other_rows_is_named(config: Config, place: Path) -> None:
    (place / "5.digest").write_bytes(with_checksum("0" * 32))
    finding = stored.outbox(config, quiet)
    assert (finding.state, finding.text) == (
        State.FAILED,
        f"the rows of {place}/5.arrow do not match their digest",
    )


@pytest.mark.parametrize("content", [b"", with_checksum("uncompared")])
def test_a_batch_without_a_digest_passes(config: Config, place: Path, content: bytes) -> None:
    (place / "5.digest").write_bytes(content)
    (place / "6.digest").unlink()
    assert stored.outbox(config, quiet).state is State.OK


def test_a_missing_batch_is_named(config: Config, place: Path) -> None:
    (place / "5.arrow").unlink()
    assert stored.outbox(config, quiet).text == f"batch 5 is missing in {place}"


def test_batches_that_a_node_trims_meanwhile_are_no_damage(config: Config, place: Path) -> None:
    def trim(count: int) -> None:
        if count == 1:
            for number in (4, 5):
                (place / f"{number}.arrow").unlink()

    report = survey(place.parent, trim)
    assert (report.batches, report.damage) == (2, ())


def test_a_damaged_high_water_file_is_named(config: Config) -> None:
    config.node.data_dir.mkdir()
    (config.node.data_dir / "high_water.json").write_text("{")
    with pytest.raises(DiskFailed, match=r"high_water\.json is damaged"):
        stored.high_water(config.node.data_dir)
