"""A node sets aside the records that an operator gave up: a file beside the journal keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.journal.record import encode
from tests.journal.samples import opened, some_records

KEPT = 5


def test_given_up_records_are_kept_in_a_file_that_names_their_positions(tmp_path: Path) -> None:
    records = some_records(20)
    journal = opened(tmp_path, segment_size=500)
    journal.append(records)
    journal.sync()
    assert len(list(tmp_path.glob("*.journal"))) > 3
    path = journal.give_up_after(KEPT)
    assert path == tmp_path / "given-up.1.6-1.20.frames"
    assert path.read_bytes() == b"".join(map(encode, records[KEPT:]))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(journal.read(1)) == records[:KEPT]


def test_journal_has_a_new_id_after_records_are_given_up(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(some_records(20))
    journal.sync()
    before = journal.journal_id
    journal.give_up_after(KEPT)
    assert journal.journal_id != before
    journal.close()
    again = opened(tmp_path)
    assert (again.last.sequence, again.torn) == (KEPT, None)
    assert again.journal_id == journal.journal_id
    again.append(some_records(7)[KEPT:])
    again.sync()


@pytest.mark.parametrize("kept", [0, 19])
def test_all_or_one_of_the_records_may_be_given_up(tmp_path: Path, kept: int) -> None:
    records = some_records(20)
    journal = opened(tmp_path, segment_size=500)
    journal.append(records)
    journal.sync()
    path = journal.give_up_after(kept)
    assert path.read_bytes() == b"".join(map(encode, records[kept:]))
    assert journal.last.sequence == kept


def test_second_attempt_after_a_crash_sets_the_same_records_aside(tmp_path: Path) -> None:
    """1. The file exists, the id is new. 2. The process ends. 3. The next process truncates
    again."""
    records = some_records(20)
    journal = opened(tmp_path)
    journal.append(records)
    journal.sync()
    (tmp_path / "given-up.1.6-1.20.frames").write_bytes(b"half of it")
    journal.retire()
    path = journal.give_up_after(KEPT)
    assert path.read_bytes() == b"".join(map(encode, records[KEPT:]))
