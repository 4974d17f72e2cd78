"""The journal for asyncio: group commit, order, limits and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ha_engine.errors import Backpressure, DiskFailed
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from tests.journal.samples import events, mark, opened
from tests.waiting import async_wait_until


@dataclass
class Told:
    """The reports of the writer."""

    durable: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def writer(self, journal: Journal, **limits: Any) -> JournalWriter:
        return JournalWriter(journal, self.durable.append, self.failures.append, **limits)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = opened(tmp_path / "journal", segment_size=2000)
    yield journal
    journal.close()


async def test_records_appended_during_a_write_become_durable_together(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal)
    writer.append([events(1)])
    writer.append([events(2), mark(3)])
    await async_wait_until(lambda: told.durable)
    for sequence in range(4, 104):
        writer.append([events(sequence)])
        await asyncio.sleep(0)
    await writer.close()
    assert told.durable[0] == 3
    assert told.durable[-1] == 103
    assert told.durable == sorted(told.durable)
    assert len(told.durable) < 100
    assert [one.position.sequence for one in journal.read(1)] == list(range(1, 104))


async def test_exclusive_call_sees_the_records_appended_before_it(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal)
    writer.append([events(1), events(2), events(3)])
    assert await writer.run_exclusive(lambda: journal.last.sequence) == 3
    await writer.run_exclusive(lambda: journal.truncate_after(1))
    writer.append([events(2, epoch=2)])
    await writer.close()
    assert list(journal.read(1)) == [events(1), events(2, epoch=2)]
    assert told.failures == []


async def test_records_appended_behind_an_exclusive_call_follow_its_result(
    journal: Journal,
) -> None:
    told = Told()
    writer = told.writer(journal)
    writer.append([events(1), events(2), events(3)])
    cut = asyncio.ensure_future(writer.run_exclusive(lambda: journal.truncate_after(1)))
    await asyncio.sleep(0)
    writer.append([events(2, epoch=2)])
    await cut
    writer.append([events(3, epoch=2)])
    await writer.close()
    assert list(journal.read(1)) == [events(1), events(2, epoch=2), events(3, epoch=2)]
    assert (told.durable[-1], told.failures) == (3, [])


async def test_an_error_of_an_exclusive_call_reaches_its_caller_only(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal)
    with pytest.raises(AssertionError, match="cannot truncate after 9"):
        await writer.run_exclusive(lambda: journal.truncate_after(9))
    writer.append([events(1)])
    await writer.close()
    assert (told.durable, told.failures) == ([1], [])


async def test_append_refuses_records_that_do_not_follow(
    journal: Journal,
) -> None:
    writer = Told().writer(journal)
    writer.append([events(1)])
    with pytest.raises(AssertionError, match="does not follow"):
        writer.append([events(3)])
    await writer.close()


async def test_wait_for_space_ends_once_enough_records_are_durable(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal)
    await writer.wait_for_space(0)
    writer.append([events(n, size=1000) for n in range(1, 4)])
    await writer.wait_for_space(writer.pending_bytes)
    assert told.durable == []
    await writer.wait_for_space(0)
    assert (told.durable, writer.pending_bytes) == ([3], 0)
    await writer.close()


async def test_failed_disk_ends_every_wait_for_space(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal)

    def fail() -> None:
        raise DiskFailed("the disk is gone")

    failing = asyncio.ensure_future(writer.run_exclusive(fail))
    await asyncio.sleep(0)
    writer.append([events(1)])
    await asyncio.wait_for(writer.wait_for_space(0), 10)
    assert [str(error) for error in told.failures] == ["the disk is gone"]
    with pytest.raises(DiskFailed):
        await failing


async def test_pending_events_are_bounded_but_marks_always_fit(journal: Journal) -> None:
    told = Told()
    writer = told.writer(journal, pending_bytes_max=1000)
    writer.append([events(1, size=700)])
    with pytest.raises(Backpressure):
        writer.append([events(2, size=700)])
    writer.append([mark(2)])
    assert writer.pending_bytes > 700
    await async_wait_until(lambda: told.durable == [2])
    assert writer.pending_bytes == 0
    writer.append([events(3, size=700)])
    await writer.close()
    assert told.durable == [2, 3]


async def test_failed_disk_ends_the_writer_and_is_reported_once(
    journal: Journal, tmp_path: Path
) -> None:
    told = Told()
    writer = told.writer(journal)
    (tmp_path / "journal").rename(tmp_path / "away")
    writer.append([events(1, size=1500), events(2, size=1500)])
    waiting = asyncio.ensure_future(writer.run_exclusive(lambda: None))
    await async_wait_until(lambda: told.failures)
    with pytest.raises(DiskFailed):
        await waiting
    with pytest.raises(DiskFailed):
        writer.append([events(3)])
    await writer.close()
    assert [type(error) for error in told.failures] == [DiskFailed]
    assert told.durable == []


async def test_stuck_write_is_reported(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    told, answers, stuck = Told(), threading.Event(), asyncio.Event()
    writer = told.writer(journal, on_stuck=stuck.set, stuck_after=0.3)
    writer.append([events(1)])
    await async_wait_until(lambda: told.durable == [1])
    monkeypatch.setattr(journal, "sync", answers.wait)
    writer.append([events(2)])
    await asyncio.wait_for(stuck.wait(), 10)
    answers.set()
    await writer.close()
    assert told.durable == [1, 2]


async def test_stuck_exclusive_call_is_reported(journal: Journal) -> None:
    answers, stuck = threading.Event(), asyncio.Event()
    writer = Told().writer(journal, on_stuck=stuck.set, stuck_after=0.03)
    trimming = asyncio.ensure_future(writer.run_exclusive(answers.wait))
    await asyncio.wait_for(stuck.wait(), 10)
    answers.set()
    await trimming
    await writer.close()


async def test_timely_writes_are_not_reported_as_stuck(journal: Journal) -> None:
    stuck: list[str] = []
    writer = Told().writer(journal, on_stuck=lambda: stuck.append("stuck"), stuck_after=0.3)
    for sequence in range(1, 60):
        writer.append([events(sequence)])
        await asyncio.sleep(0.01)
    await writer.close()
    await asyncio.sleep(0.5)
    assert stuck == []


async def test_error_of_a_listener_is_reported(journal: Journal) -> None:
    told = Told()

    def fails(sequence: int) -> None:
        raise LookupError(sequence)

    writer = JournalWriter(journal, fails, told.failures.append)
    writer.append([events(1)])
    await async_wait_until(lambda: told.failures)
    assert [type(error) for error in told.failures] == [LookupError]
    await writer.close()


async def test_closed_writer_refuses_appends(journal: Journal) -> None:
    writer = Told().writer(journal)
    await writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.append([events(1)])


async def test_range_located_during_writes_has_exactly_its_records(
    journal: Journal,
) -> None:
    writer = Told().writer(journal)

    def read_what_is_there() -> int:
        last = journal.last.sequence
        sequences = [one.position.sequence for one in journal.read(1, last)]
        assert sequences == list(range(1, last + 1))
        return last

    for sequence in range(1, 400):
        writer.append([events(sequence, size=10)])
        await asyncio.to_thread(read_what_is_there)
    await writer.close()
    assert read_what_is_there() == 399
