"""The publisher: real outbox, real database, faults of the database, fencing and authority."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox import Outbox
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Publisher, SinkState, SinkStatus
from ha_engine.publish.delivery import Timing
from tests.publish.batches import (
    GROUP,
    QUERY,
    SINK,
    Granted,
    admit,
    execute,
    ledger_of,
    open_sink,
    rows_of,
)
from tests.waiting import async_wait_until

TARGET = Target("delays", auto_create=True)
COUNTED = "SELECT count(*), count(DISTINCT n), max(n) FROM delays"


class Node:
    """The parts that a node wires around a publisher, and the reports that it gets."""

    def __init__(
        self, directory: Path, url: str, *, target: Target = TARGET, timeout: float = 2.0
    ) -> None:
        self.directory, self.url = directory, url
        self.outbox = Outbox.open(directory)
        self.authority = Granted()
        self.group_id = GROUP
        self.published: list[int] = []
        self.fenced: list[int] = []
        self.publisher = Publisher(
            self.outbox,
            {(QUERY, SINK): open_sink(url, target, timeout=timeout)},
            self.authority,
            on_published=lambda query, sink, batch: self.published.append(batch),
            on_fenced=self.fenced.append,
            group_id=lambda: self.group_id,
            timing=Timing(call_timeout=timeout, backoff_max=0.2),
        )

    def admit(self, *numbers: int) -> None:
        for number in numbers:
            admit(
                self.outbox, self.directory, number, pa.table({"n": [2 * number - 1, 2 * number]})
            )
            self.publisher.admitted(QUERY, number)

    @property
    def status(self) -> SinkStatus:
        [status] = self.publisher.status()
        return status

    async def published_through(self, number: int, within: float = 20.0) -> None:
        await async_wait_until(
            lambda: (self.status.published_through or 0) >= number, within=within
        )


Opening = Callable[..., Node]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opening]:
    nodes: list[Node] = []

    def open_node(url: str, **options: object) -> Node:
        nodes.append(Node(tmp_path / f"node-{len(nodes)}", url, **options))  # type: ignore[arg-type]
        return nodes[-1]

    yield open_node
    for node in nodes:
        await node.publisher.close()


async def test_publisher_publishes_batches_in_order_of_their_admission(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.admit(1, 2)
    node.publisher.start(1)
    await node.published_through(2)
    node.admit(3)
    await node.published_through(3)
    assert node.published == [0, 1, 2, 3]  # first the batch of the ledger at the claim
    assert rows_of(database_url, COUNTED) == [(6, 6, 6)]
    assert (node.status.backlog, node.status.state, node.status.error) == (
        0,
        SinkState.PUBLISHING,
        None,
    )


async def test_restarted_publisher_continues_from_the_ledger(
    database_url: str, opened: Opening
) -> None:
    first, second = opened(database_url), opened(database_url)
    first.admit(1, 2, 3)
    first.publisher.start(1)
    await first.published_through(3)
    await first.publisher.stop()
    second.admit(1, 2, 3, 4, 5)
    second.publisher.start(2)
    await second.published_through(5)
    assert second.published == [3, 4, 5]
    assert rows_of(database_url, COUNTED) == [(10, 10, 10)]
    assert ledger_of(database_url) == (2, 5)


async def test_waiting_publisher_claims_its_ledger_again_on_request(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.publisher.start(3)
    await node.published_through(0)
    await async_wait_until(lambda: node.published == [0])
    execute(database_url, "UPDATE ha_engine_ledger SET epoch = 2")
    node.publisher.claim_again("another query")
    node.publisher.claim_again(QUERY)
    await async_wait_until(lambda: ledger_of(database_url) == (3, 0))
    execute(database_url, "UPDATE ha_engine_ledger SET epoch = 4")
    node.publisher.claim_again(QUERY)
    await async_wait_until(lambda: node.fenced == [4])


async def test_publisher_reports_the_ledger_under_each_epoch(
    database_url: str, opened: Opening
) -> None:
    """RULES.md#r26: an active under a forced epoch cuts no batch before the report, though the
    ledger has not moved."""
    node = opened(database_url)
    node.admit(1)
    node.publisher.start(1)
    await node.published_through(1)
    await node.publisher.stop()
    node.published.clear()
    node.publisher.start(2)
    await async_wait_until(lambda: node.published == [1])


async def test_a_higher_epoch_ends_the_lower_publisher(database_url: str, opened: Opening) -> None:
    old, new = opened(database_url), opened(database_url)
    old.admit(1)
    old.publisher.start(1)
    await old.published_through(1)
    new.admit(1)
    new.publisher.start(7)
    await new.published_through(1)
    old.admit(2)
    await async_wait_until(lambda: old.fenced == [7])
    assert old.status.state is SinkState.FENCED
    assert ledger_of(database_url) == (7, 1)
    assert not old.publisher.failed.done()


async def test_nothing_is_published_without_authority(database_url: str, opened: Opening) -> None:
    node = opened(database_url)
    node.authority.until = 0
    node.admit(1)
    node.publisher.start(1)
    await async_wait_until(lambda: node.status.state is SinkState.SUSPENDED)
    assert rows_of(database_url, "SELECT to_regclass('ha_engine_ledger')") == [(None,)]
    node.authority.until = Granted().until
    await node.published_through(1)


async def test_call_continues_when_its_authority_is_renewed(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url, timeout=10.0)
    execute(database_url, "CREATE TABLE delays (n bigint)")
    execute(
        database_url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.6); RETURN NEW; END'",
    )
    execute(
        database_url,
        "CREATE TRIGGER slow BEFORE INSERT ON delays FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    node.admit(1)
    renewing = asyncio.create_task(_renew_shortly(node))
    with capture_logs() as logs:
        node.publisher.start(1)
        await node.published_through(1)
    renewing.cancel()
    assert "sink fails" not in [line["event"] for line in logs]


async def _renew_shortly(node: Node) -> None:
    while True:
        node.authority.until = Granted(0.5).until
        await asyncio.sleep(0.1)


async def test_call_is_cancelled_when_its_authority_expires(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url, timeout=30.0)
    node.admit(1)
    node.publisher.start(1)
    await node.published_through(1)
    from ha_engine.postgres.engine import open_engine

    with open_engine(database_url).connect() as other:
        other.exec_driver_sql("SELECT * FROM ha_engine_ledger FOR UPDATE")
        node.authority.until = Granted(0.5).until
        node.admit(2)
        await async_wait_until(
            lambda: node.status.state in {SinkState.UNAVAILABLE, SinkState.SUSPENDED}, within=1.5
        )
        other.rollback()
    assert ledger_of(database_url) == (1, 1)
    node.authority.until = Granted().until
    await node.published_through(2)
    assert rows_of(database_url, COUNTED) == [(4, 4, 4)]


async def test_stop_ends_a_call_in_flight_before_it_returns(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url, timeout=30.0)
    node.admit(1)
    node.publisher.start(1)
    await node.published_through(1)
    from ha_engine.postgres.engine import open_engine

    with open_engine(database_url).connect() as other:
        other.exec_driver_sql("SELECT * FROM ha_engine_ledger FOR UPDATE")
        node.admit(2)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await async_wait_until(lambda: rows_of(database_url, waiting) == [(1,)])
        await asyncio.wait_for(node.publisher.stop(), 1.0)
        other.rollback()
    assert node.status.state is SinkState.STOPPED
    node.publisher.start(2)
    await node.published_through(2)
    assert rows_of(database_url, COUNTED) == [(4, 4, 4)]


async def test_database_killed_during_publishing_gets_no_batch_twice(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    url = own_postgres.url
    node = opened(url)
    node.publisher.start(1)
    for round_ in range(4):
        node.admit(*range(round_ * 25 + 1, round_ * 25 + 26))
        await node.published_through(round_ * 25 + 8)
        pid = own_postgres.pid
        os.kill(pid, signal.SIGKILL)
        await async_wait_until(lambda pid=pid: not _lives(pid))
        await asyncio.to_thread(own_postgres.start)
    await node.published_through(100)
    assert rows_of(url, COUNTED) == [(200, 200, 200)]
    assert ledger_of(url) == (1, 100)
    assert node.published == sorted(set(node.published))


async def test_a_sink_that_was_down_catches_up(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    url = own_postgres.url
    node = opened(url)
    node.publisher.start(1)
    node.admit(1)
    await node.published_through(1)
    await asyncio.to_thread(own_postgres.stop)
    node.admit(*range(2, 40))
    await async_wait_until(lambda: node.status.state is SinkState.UNAVAILABLE)
    assert node.status.backlog == 38
    assert node.status.error is not None
    await asyncio.to_thread(own_postgres.start)
    await node.published_through(39)
    assert rows_of(url, COUNTED) == [(78, 78, 78)]
    assert (node.status.state, node.status.error) == (SinkState.PUBLISHING, None)


async def test_refused_sink_gives_its_reason_and_continues_once_repaired(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url, target=Target("delays"))
    node.admit(1)
    node.publisher.start(1)
    await async_wait_until(lambda: node.status.state is SinkState.REFUSED)
    assert "does not exist" in (node.status.error or "")
    execute(database_url, "CREATE TABLE delays (n bigint)")
    await node.published_through(1)


async def test_ledger_behind_the_trimmed_batches_is_refused(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.admit(1, 2, 3)
    node.outbox.trim(QUERY, 2)
    node.publisher.start(1)
    await async_wait_until(lambda: node.status.state is SinkState.REFUSED)
    assert "lacks batch 1" in (node.status.error or "")


async def test_sink_that_awaits_a_batch_skipped_by_the_outbox_is_refused(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.admit(1)
    node.publisher.start(1)
    await node.published_through(1)
    node.outbox.trim(QUERY, 3)
    node.admit(4)
    await async_wait_until(lambda: node.status.state is SinkState.REFUSED)
    assert "lacks batch 2, but the outbox begins after batch 3" in (node.status.error or "")


async def test_sink_whose_batch_is_trimmed_before_it_is_read_is_refused(
    database_url: str, opened: Opening
) -> None:
    """The group recorded the batch as published, and the database then lost its last commits."""
    node = opened(database_url)
    node.admit(1)
    node.publisher.start(1)
    await node.published_through(1)
    node.authority.until = 0
    node.admit(2)
    await async_wait_until(lambda: node.status.state is SinkState.SUSPENDED)
    node.outbox.trim(QUERY, 2)
    node.authority.until = Granted().until
    await async_wait_until(lambda: node.status.state is SinkState.REFUSED)
    assert "lacks batch 2, but the outbox begins after batch 2" in (node.status.error or "")
    assert not node.publisher.failed.done()


async def test_ledger_ahead_of_the_planned_batches_is_refused_and_not_reported(
    database_url: str, opened: Opening
) -> None:
    before, after = opened(database_url), opened(database_url)
    before.admit(1, 2, 3)
    before.publisher.start(1)
    await before.published_through(3)
    await before.publisher.stop()
    after.admit(1)
    after.publisher.start(2)
    await async_wait_until(lambda: after.status.state is SinkState.REFUSED)
    assert "batch 3" in (after.status.error or "")
    assert "this node planned none after 1" in (after.status.error or "")
    assert after.published == []
    after.admit(2, 3, 4)
    await after.published_through(4)
    assert rows_of(database_url, COUNTED) == [(8, 8, 8)]


async def test_ledger_of_another_group_does_not_fence_a_publisher(
    database_url: str, opened: Opening
) -> None:
    theirs, ours = opened(database_url), opened(database_url)
    theirs.group_id = "group-of-before"
    theirs.admit(1)
    theirs.publisher.start(9)
    await theirs.published_through(1)
    ours.admit(1)
    ours.publisher.start(1)
    await async_wait_until(lambda: ours.status.state is SinkState.REFUSED)
    assert "belongs to group group-of-before" in (ours.status.error or "")
    assert ours.fenced == []
    assert ours.published == []


async def test_a_damaged_batch_ends_the_publisher_with_its_reason(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.admit(1)
    (node.directory / QUERY / "1.arrow").write_bytes(b"nothing")
    node.publisher.start(1)
    with pytest.raises(OutboxDamaged, match=r"1\.arrow"):
        await asyncio.wait_for(asyncio.shield(node.publisher.failed), 10)


async def test_quick_starts_and_stops_publish_under_the_last_epoch(
    database_url: str, opened: Opening
) -> None:
    node = opened(database_url)
    node.admit(*range(1, 20))
    endings = []
    for epoch in range(1, 6):
        node.publisher.start(epoch)
        await asyncio.sleep(0)
        endings.append(asyncio.ensure_future(node.publisher.stop()))
    node.publisher.start(6)
    await node.published_through(19)
    await asyncio.gather(*endings)
    assert ledger_of(database_url) == (6, 19)
    assert rows_of(database_url, COUNTED) == [(38, 38, 38)]


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_new_active_that_is_behind_continues_after_the_published_batches(
    database_url: str, opened: Opening
) -> None:
    before, after = opened(database_url), opened(database_url)
    before.admit(1, 2, 3)
    before.publisher.start(1)
    await before.published_through(3)
    await before.publisher.stop()
    after.authority.marked = 4
    after.admit(1)
    after.publisher.start(2)
    await after.published_through(3)
    after.admit(2, 3, 4)
    await after.published_through(4)
    assert rows_of(database_url, COUNTED) == [(8, 8, 8)]
