"""A journal after a crash or a bad sector: torn tails are truncated, damage is refused."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from ha_engine.errors import ForeignJournal, JournalDamaged, UnknownJournalVersion
from ha_engine.journal import Journal, identity, read_extent
from ha_engine.journal.identity import JournalIdentity
from ha_engine.journal.record import encode
from ha_engine.system import json_file
from ha_engine.types import Extent, Position, Record
from tests.journal.samples import events, flip, opened, some_records, written_journal

PAGE = 4096


def starts_of(records: Sequence[Record]) -> list[int]:
    """Return the offset of each record of the only segment, and the end of the last."""
    places = [40]
    for record in records:
        places.append(places[-1] + len(encode(record)))
    return places


def test_journal_cut_at_any_byte_keeps_exactly_its_whole_records(
    tmp_path: Path,
) -> None:
    records = some_records(8)
    (path,) = written_journal(tmp_path / "journal", records)
    whole, starts = path.read_bytes(), starts_of(records)
    for size in range(starts[5], starts[8] + 1):
        path.write_bytes(whole[:size])
        kept = sum(end <= size for end in starts[1:])
        journal = opened(tmp_path / "journal")
        assert list(journal.read(1)) == records[:kept]
        if size in starts:
            assert journal.torn is None
        else:
            assert journal.torn is not None
            assert str(path) in journal.torn
            assert f"record {kept + 1}" in journal.torn
        journal.close()
        assert path.stat().st_size == starts[kept]


def test_zeros_after_any_cut_are_a_torn_tail(tmp_path: Path) -> None:
    records = some_records(8)
    (path,) = written_journal(tmp_path / "journal", records)
    whole, starts = path.read_bytes(), starts_of(records)
    for size in range(starts[5], starts[8] + 1):
        path.write_bytes(whole[:size] + bytes(2 * PAGE - size % PAGE))
        kept = sum(end <= size for end in starts[1:])
        journal = opened(tmp_path / "journal")
        assert list(journal.read(1)) == records[:kept]
        assert journal.torn is not None
        journal.close()


def test_last_record_with_an_unwritten_sector_is_torn(tmp_path: Path) -> None:
    records = [*some_records(3), events(4, size=3000)]
    (path,) = written_journal(tmp_path / "journal", records)
    whole = path.read_bytes()
    path.write_bytes(whole[:1024] + bytes(512) + whole[1536:])
    journal = opened(tmp_path / "journal")
    assert list(journal.read(1)) == records[:3]
    assert journal.torn is not None


def test_bytes_behind_a_record_with_an_unwritten_sector_are_damage(tmp_path: Path) -> None:
    records = [*some_records(3), events(4, size=3000)]
    (path,) = written_journal(tmp_path / "journal", records)
    whole = path.read_bytes()
    path.write_bytes(whole[:1024] + bytes(512) + whole[1536:] + b"something else")
    with pytest.raises(JournalDamaged):
        opened(tmp_path / "journal")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (events(4), "the segment has record 4 instead of 3"),
        (events(2), "the segment has record 2 instead of 3"),
        (events(3, epoch=1), "epoch 1 follows epoch 2"),
    ],
)
def test_an_intact_record_in_the_wrong_place_is_damage(
    tmp_path: Path, wrong: Record, reason: str
) -> None:
    (path,) = written_journal(tmp_path / "journal", [events(1, epoch=2), events(2, epoch=2)])
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + encode(wrong))
    with pytest.raises(JournalDamaged, match=reason) as refused:
        opened(tmp_path / "journal")
    assert refused.value.offset == size


def test_truncated_tail_is_logged_and_appends_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = some_records(4)
    (path,) = written_journal(tmp_path / "journal", records)
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        journal = opened(tmp_path / "journal")
    assert "torn record 4" in caplog.text
    journal.append(records[3:])
    journal.sync()
    journal.close()
    assert list(opened(tmp_path / "journal").read(1)) == records


@pytest.mark.parametrize("damaged", [3, 8], ids=["in the middle", "at the end"])
def test_any_flipped_bit_of_a_record_is_refused_with_file_and_offset(
    tmp_path: Path, damaged: int
) -> None:
    records = some_records(8)
    (path,) = written_journal(tmp_path / "journal", records)
    starts = starts_of(records)
    for offset in range(starts[damaged - 1], starts[damaged]):
        bit = offset % 8
        flip(path, offset, bit)
        with pytest.raises(JournalDamaged, match=re.escape(str(path))) as refused:
            opened(tmp_path / "journal")
        assert (refused.value.path, refused.value.offset) == (str(path), starts[damaged - 1])
        flip(path, offset, bit)
    assert list(opened(tmp_path / "journal").read(1)) == records


def test_zeroed_record_before_others_is_damage(tmp_path: Path) -> None:
    records = some_records(8)
    (path,) = written_journal(tmp_path / "journal", records)
    whole, starts = path.read_bytes(), starts_of(records)
    path.write_bytes(whole[: starts[6]] + bytes(starts[7] - starts[6]) + whole[starts[7] :])
    with pytest.raises(JournalDamaged) as refused:
        opened(tmp_path / "journal")
    assert refused.value.offset == starts[6]


def test_truncated_segment_before_the_last_is_damage(tmp_path: Path) -> None:
    first, *_ = written_journal(tmp_path / "journal", some_records(20), segment_size=700)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(JournalDamaged, match=re.escape(str(first))):
        opened(tmp_path / "journal")


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    paths = written_journal(tmp_path / "journal", some_records(20), segment_size=700)
    paths[1].unlink()
    with pytest.raises(JournalDamaged, match="the segment begins with record"):
        opened(tmp_path / "journal")


def test_swapped_segments_are_damage(tmp_path: Path) -> None:
    one, two, *_ = written_journal(tmp_path / "journal", some_records(20), segment_size=700)
    spare = tmp_path / "spare"
    one.rename(spare)
    two.rename(one)
    spare.rename(two)
    with pytest.raises(JournalDamaged, match="but the file name says"):
        opened(tmp_path / "journal")


def test_a_segment_of_another_journal_is_damage(tmp_path: Path) -> None:
    ours = written_journal(tmp_path / "ours", some_records(20), segment_size=700)
    theirs = written_journal(tmp_path / "theirs", some_records(20), segment_size=700)
    shutil.copy(theirs[1], ours[1])
    with pytest.raises(JournalDamaged, match="another journal"):
        opened(tmp_path / "ours")


@pytest.mark.parametrize("size", [0, 17, 40])
def test_segment_whose_creation_was_interrupted_is_recreated(tmp_path: Path, size: int) -> None:
    records = some_records(20)
    paths = written_journal(tmp_path / "journal", records, segment_size=700)
    fresh = tmp_path / "journal" / f"{21:020d}.journal"
    fresh.write_bytes(paths[0].read_bytes()[:size].ljust(512 if size == 17 else size, b"\0"))
    if size == 40:
        fresh.write_bytes(bytes(40))
    journal = opened(tmp_path / "journal")
    assert journal.torn is not None
    assert journal.last.sequence == 20
    journal.append([events(21)])
    journal.sync()
    journal.close()
    again = opened(tmp_path / "journal")
    assert (again.torn, again.last.sequence) == (None, 21)


def test_segment_whose_creation_was_interrupted_is_damage_after_a_gap(tmp_path: Path) -> None:
    """Records 21 and 22 would go into the file of record 22, and no later start would read them."""
    written_journal(tmp_path / "journal", some_records(20), segment_size=700)
    (tmp_path / "journal" / f"{22:020d}.journal").write_bytes(bytes(40))
    with pytest.raises(JournalDamaged, match="begins with record 22 instead of 21"):
        opened(tmp_path / "journal")


def test_interrupted_creation_of_a_journal_is_repeated(tmp_path: Path) -> None:
    (path,) = written_journal(tmp_path / "journal", [])
    (tmp_path / "journal" / "identity.json").unlink()
    path.write_bytes(path.read_bytes()[:20])
    assert opened(tmp_path / "journal").last.sequence == 0


def test_records_without_an_identity_are_damage(tmp_path: Path) -> None:
    written_journal(tmp_path / "journal", some_records(3))
    (tmp_path / "journal" / "identity.json").unlink()
    with pytest.raises(JournalDamaged, match=r"identity\.json"):
        opened(tmp_path / "journal")


def test_any_flipped_bit_of_the_identity_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    whole = JournalIdentity("test", "7c0e", "ab12", ("cd34",), (Position(1, 1), Position(3, 17)))
    identity.store(tmp_path, whole)
    path = tmp_path / identity.FILE_NAME
    for offset in range(path.stat().st_size):
        for bit in range(8):
            flip(path, offset, bit)
            with suppress(JournalDamaged, UnknownJournalVersion):
                assert identity.load(tmp_path) == whole
            flip(path, offset, bit)


def test_an_identity_without_records_is_damage(tmp_path: Path) -> None:
    (path,) = written_journal(tmp_path / "journal", some_records(3))
    path.unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        opened(tmp_path / "journal")


def test_a_journal_of_another_group_is_refused(tmp_path: Path) -> None:
    written_journal(tmp_path / "journal", some_records(3))
    with pytest.raises(ForeignJournal, match="belongs to group test, not to other"):
        Journal.open(tmp_path / "journal", group="other")


def test_a_journal_bound_to_a_group_is_not_bound_to_another(tmp_path: Path) -> None:
    journal, group_id = opened(tmp_path / "journal"), str(uuid4())
    assert journal.group_id is None
    journal.bind_group(group_id)
    journal.close()
    journal = opened(tmp_path / "journal")
    journal.bind_group(group_id)
    assert journal.group_id == group_id
    with pytest.raises(ForeignJournal, match=group_id):
        journal.bind_group(str(uuid4()))


def test_an_identity_of_a_later_version_is_refused(tmp_path: Path) -> None:
    written_journal(tmp_path / "journal", some_records(3))
    path = tmp_path / "journal" / identity.FILE_NAME
    json_file.store(path, {**json_file.load(path), "version": 2})
    with pytest.raises(UnknownJournalVersion, match="run the engine version that wrote it"):
        opened(tmp_path / "journal")


def test_worker_that_reads_a_damaged_extent_gets_file_and_offset(tmp_path: Path) -> None:
    records = some_records(4)
    (path,) = written_journal(tmp_path / "journal", records)
    starts = starts_of(records)
    flip(path, starts[2] - 1)
    extent = Extent(str(path), starts[0], starts[4] - starts[0])
    reading = read_extent(extent)
    assert next(reading) == records[0]
    with pytest.raises(JournalDamaged) as refused:
        next(reading)
    assert refused.value.offset == starts[1]


def test_only_the_owner_of_a_journal_may_read_it(tmp_path: Path) -> None:
    (path,) = written_journal(tmp_path / "journal", some_records(3))
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "journal" / "identity.json").stat().st_mode & 0o777 == 0o600


def test_append_of_records_that_do_not_follow_is_a_programming_error(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    journal.append([events(1, epoch=2)])
    for wrong in (events(1, epoch=2), events(3, epoch=2), events(2, epoch=1)):
        with pytest.raises(AssertionError, match="does not follow"):
            journal.append([wrong])
    assert journal.last.sequence == 1


def test_each_record_is_found_after_a_truncation_and_new_records(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    journal.append([events(n, size=20_000) for n in range(1, 6)])
    journal.truncate_after(2)
    journal.append([events(n, epoch=2, size=25_000) for n in range(3, 8)])
    for n in range(3, 8):
        assert list(journal.read(n, n)) == [events(n, epoch=2, size=25_000)]
