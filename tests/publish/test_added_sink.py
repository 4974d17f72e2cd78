"""A sink that is added to an application later: real outbox, real database (RULES.md#r25)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ha_engine.core import MarkLimits
from ha_engine.core.marks import QueryMarks
from ha_engine.outbox import Outbox
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Publisher, SinkState
from ha_engine.types import Mark, Published
from tests.publish.batches import GROUP, QUERY, SINK, Granted, admit, open_sink, rows_of
from tests.waiting import async_wait_until

LIMITS = MarkLimits(1000, 0.0, 0.5, 64, 1 << 20)


class RestartedNode:
    """The start of a node: it reads the journal, then the outbox, then starts the publisher."""

    def __init__(self, directory: Path, url: str, last: int, published: dict[str, int]) -> None:
        self.outbox = Outbox.open(directory)
        self.marks = QueryMarks(QUERY, frozenset({"s"}), (SINK,), LIMITS)
        for number in range(1, last + 1):
            self.marks.apply_mark(number, Mark(QUERY, number, number))
        for sink, batch in published.items():
            self.marks.apply_published(last + 1, Published(QUERY, sink, batch))
        floor = self.marks.set_outbox_floor(
            self.outbox.first(QUERY), self.outbox.trimmed_through(QUERY)
        )
        self.outbox.set_outbox_floor(QUERY, floor)
        self.publisher = Publisher(
            self.outbox,
            {(QUERY, SINK): open_sink(url, Target("delays", auto_create=True))},
            Granted(),
            on_published=lambda query, sink, batch: None,
            on_fenced=lambda epoch: None,
            group_id=lambda: GROUP,
            start_after=lambda query, sink: self.marks.start_after(sink),
        )


def outbox_with(directory: Path, *, last: int, trimmed: int) -> None:
    outbox = Outbox.open(directory)
    for number in range(1, last + 1):
        admit(outbox, directory, number, pa.table({"n": [number]}))
    outbox.trim(QUERY, trimmed)


async def test_added_sink_gets_the_batches_of_the_outbox_and_all_later_ones(
    tmp_path: Path, database_url: str
) -> None:
    outbox_with(tmp_path, last=4, trimmed=2)
    node = RestartedNode(tmp_path, database_url, last=4, published={"another": 2})
    node.publisher.start(1)
    admit(node.outbox, tmp_path, 5, pa.table({"n": [5]}))
    node.publisher.admitted(QUERY, 5)
    await async_wait_until(lambda: node.publisher.status()[0].published_through == 5)
    assert rows_of(database_url, "SELECT n FROM delays ORDER BY n") == [(3,), (4,), (5,)]
    await node.publisher.close()


async def test_member_restarted_before_its_first_batch_makes_the_missing_batches(
    tmp_path: Path, database_url: str
) -> None:
    """The member's journal names batches that it has yet to run; they have not left its outbox."""
    outbox_with(tmp_path / "active", last=2, trimmed=0)
    active = RestartedNode(tmp_path / "active", database_url, last=5, published={})
    active.publisher.start(1)
    await async_wait_until(lambda: active.publisher.status()[0].published_through == 2)
    await active.publisher.close()
    there = {SINK: 2, "another": 4}
    member = RestartedNode(tmp_path / "member", database_url, last=5, published=there)
    for number in range(1, 5):
        admit(member.outbox, tmp_path / "member", number, pa.table({"n": [number]}))
    member.publisher.start(2)
    await async_wait_until(lambda: member.publisher.status()[0].published_through == 4)
    assert rows_of(database_url, "SELECT n FROM delays ORDER BY n") == [(1,), (2,), (3,), (4,)]
    await member.publisher.close()


async def test_added_sink_begins_with_the_next_batch_when_the_outbox_is_empty(
    tmp_path: Path, database_url: str
) -> None:
    outbox_with(tmp_path, last=10, trimmed=10)
    node = RestartedNode(tmp_path, database_url, last=11, published={"another": 10})
    node.publisher.start(1)
    admit(node.outbox, tmp_path, 11, pa.table({"n": [11]}))
    node.publisher.admitted(QUERY, 11)
    await async_wait_until(lambda: node.publisher.status()[0].published_through == 11)
    assert rows_of(database_url, "SELECT n FROM delays") == [(11,)]
    await node.publisher.close()


async def test_returning_sink_that_lacks_trimmed_batches_is_refused(
    tmp_path: Path, database_url: str
) -> None:
    outbox_with(tmp_path, last=10, trimmed=10)
    node = RestartedNode(tmp_path, database_url, last=11, published={"another": 10, SINK: 3})
    node.publisher.start(1)
    await async_wait_until(lambda: node.publisher.status()[0].state is SinkState.REFUSED)
    error = node.publisher.status()[0].error or ""
    assert "lacks batch 4, but the outbox begins after batch 10; give the sink a new name" in error
    await node.publisher.close()


async def test_ledger_behind_the_outbox_is_refused_without_a_record_of_the_sink(
    tmp_path: Path, database_url: str
) -> None:
    outbox_with(tmp_path / "before", last=1, trimmed=0)
    before = RestartedNode(tmp_path / "before", database_url, last=1, published={})
    before.publisher.start(1)
    await async_wait_until(lambda: before.publisher.status()[0].published_through == 1)
    await before.publisher.close()
    outbox_with(tmp_path / "now", last=10, trimmed=8)
    node = RestartedNode(tmp_path / "now", database_url, last=10, published={"another": 8})
    node.publisher.start(2)
    await async_wait_until(lambda: node.publisher.status()[0].state is SinkState.REFUSED)
    await node.publisher.close()
