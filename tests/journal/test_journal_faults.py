"""Records that were reported durable survive a failed disk and a killed process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.journal import Journal
from ha_engine.journal.reading import FILE_HEADER_BYTES
from tests.journal.appender import SEGMENT_SIZE
from tests.journal.samples import events, flip, opened

ROOT = Path(__file__).parents[2]


def appender(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.journal.appender", str(directory), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def held(directory: Path) -> int:
    """Read and compare all records of the journal; return their number."""
    journal = Journal.open(directory, group="test", segment_size=SEGMENT_SIZE)
    last = journal.last.sequence
    expected = (events(n, size=n * 37 % 3000) for n in range(1, last + 1))
    assert all(one == other for one, other in zip(journal.read(1), expected, strict=True))
    journal.close()
    return last


def test_failed_write_is_fatal_and_durable_records_survive(tmp_path: Path) -> None:
    with appender(tmp_path / "journal", "20000") as process:
        output, _ = process.communicate(timeout=60)
    *durable, failed, refused = output.splitlines()
    assert failed.startswith("failed DiskFailed: the journal could not be written")
    assert "File too large" in failed
    assert refused == "refused 3"
    assert held(tmp_path / "journal") >= int(durable[-1]) > 0


@pytest.mark.parametrize("acks", [1, 7, 40, 90, 200])
def test_all_records_reported_durable_survive_a_killed_process(tmp_path: Path, acks: int) -> None:
    durable = 0
    for _ in range(2):
        with appender(tmp_path / "journal") as process:
            assert process.stdout is not None
            lines = [int(process.stdout.readline()) for _ in range(acks)]
            process.kill()
            lines += [int(line) for line in process.stdout if line.endswith("\n")]
        assert lines[0] > durable
        durable = lines[-1]
        assert held(tmp_path / "journal") >= durable


def test_failed_fsync_is_never_retried(tmp_path: Path) -> None:
    directory, away = tmp_path / "journal", tmp_path / "away"
    journal = opened(directory, segment_size=300)
    journal.append([events(1), events(2)])
    directory.rename(away)
    with pytest.raises(DiskFailed, match="could not be synced"):
        journal.sync()
    away.rename(directory)
    for attempt in (
        journal.sync,
        lambda: journal.append([events(3)]),
        lambda: journal.truncate_after(1),
        lambda: journal.trim_before(2),
        lambda: journal.read(1),
        lambda: journal.locate(1, 2),
        journal.retire,
        lambda: journal.bind_group("1"),
    ):
        with pytest.raises(DiskFailed, match="could not be synced"):
            attempt()


def test_journal_with_a_damaged_record_refuses_all_after_a_failed_truncation(
    tmp_path: Path,
) -> None:
    """The truncation reads the headers of the records, to find where the file must end."""
    journal = opened(tmp_path / "journal")
    journal.append([events(n) for n in range(1, 9)])
    journal.sync()
    flip(next((tmp_path / "journal").glob("*.journal")), FILE_HEADER_BYTES + 20)
    with pytest.raises(JournalDamaged):
        journal.truncate_after(5)
    with pytest.raises(DiskFailed, match="damaged"):
        journal.append([events(9)])
    journal.close()
