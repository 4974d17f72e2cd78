"""The order of writes, fsyncs and reports."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from tests.dst.disk import SimulatedDisk, SimulatedFiles
from tests.journal.samples import events
from tests.waiting import async_wait_until


@pytest.fixture
def files(tmp_path: Path) -> SimulatedFiles:
    return SimulatedFiles(SimulatedDisk(tmp_path / "disk", Random(0)))


def opened(files: SimulatedFiles, segment_size: int = 1 << 20) -> Journal:
    directory = files.disk.root / "journal"
    return Journal.open(directory, group="test", segment_size=segment_size, files=files)


def steps_of(files: SimulatedFiles) -> list[str]:
    """Return the changes since the last question, without the opening of files."""
    steps = [step.replace("/" + "0" * 19, "/") for step in files.trace if step[:4] != "open"]
    files.trace.clear()
    return steps


def test_a_new_segment_is_reachable_before_its_records_are_durable(files: SimulatedFiles) -> None:
    journal = opened(files, segment_size=300)
    files.trace.clear()
    journal.append([events(1), events(2)])
    journal.sync()
    assert steps_of(files) == [
        "write journal/1.journal",
        # Only the newest segment may end in a torn record, so this one must be whole first.
        "fdatasync journal/1.journal",
        "write journal/2.journal",
        "write journal/2.journal",
        "fsync journal",
        "fdatasync journal/2.journal",
    ]
    journal.sync()
    assert steps_of(files) == ["fdatasync journal/2.journal"]


async def test_nothing_is_reported_durable_before_its_fdatasync(files: SimulatedFiles) -> None:
    journal = opened(files)
    files.trace.clear()

    def on_durable(sequence: int) -> None:
        files.trace.append(f"durable {sequence}")

    writer = JournalWriter(journal, on_durable, lambda error: None)
    writer.append([events(1), events(2)])
    await async_wait_until(lambda: "durable 2" in files.trace)
    await writer.close()
    steps = ["write journal/1.journal", "fdatasync journal/1.journal", "durable 2"]
    assert steps_of(files) == steps


def test_a_reopened_journal_holds_durable_records_only(files: SimulatedFiles) -> None:
    journal = opened(files)
    journal.append([events(1)])
    journal.close()
    files.trace.clear()
    opened(files)
    assert steps_of(files) == ["fsync journal/1.journal", "fsync journal"]
