"""The order of writes, fsyncs and reports at the operating system's interface."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ha_engine.journal.writer import JournalWriter
from tests.journal.samples import events, opened
from tests.waiting import async_wait_until

Steps = list[tuple[str, str]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Record the completed system calls and their files."""
    noted: Steps = []

    def observed(call: Callable[..., object]) -> Callable[..., object]:
        def observe(descriptor: int, *arguments: object) -> object:
            result = call(descriptor, *arguments)
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.lstrip("0")
            noted.append((call.__name__, name))
            return result

        return observe

    for call in (os.fsync, os.fdatasync, os.writev):
        monkeypatch.setattr(os, call.__name__, observed(call))
    return noted


def test_a_new_segment_is_reachable_before_its_records_are_durable(
    tmp_path: Path, steps: Steps
) -> None:
    journal = opened(tmp_path / "journal", segment_size=300)
    steps.clear()
    journal.append([events(1), events(2)])
    journal.sync()
    assert steps == [
        ("writev", "1.journal"),
        # Only the newest segment may end in a torn record, so this one must be whole first.
        ("fdatasync", "1.journal"),
        ("writev", "2.journal"),
        ("fsync", "journal"),
        ("fdatasync", "2.journal"),
    ]
    steps.clear()
    journal.sync()
    assert steps == [("fdatasync", "2.journal")]


async def test_nothing_is_reported_durable_before_its_fdatasync(
    tmp_path: Path, steps: Steps
) -> None:
    journal = opened(tmp_path / "journal")
    steps.clear()

    def on_durable(sequence: int) -> None:
        steps.append(("durable", str(sequence)))

    writer = JournalWriter(journal, on_durable, lambda error: None)
    writer.append([events(1), events(2)])
    await async_wait_until(lambda: ("durable", "2") in steps)
    await writer.close()
    assert steps == [("writev", "1.journal"), ("fdatasync", "1.journal"), ("durable", "2")]


def test_a_reopened_journal_holds_durable_records_only(tmp_path: Path, steps: Steps) -> None:
    journal = opened(tmp_path / "journal")
    journal.append([events(1)])
    journal.close()
    steps.clear()
    opened(tmp_path / "journal")
    assert ("fsync", "1.journal") in steps
    assert ("fsync", "journal") in steps
