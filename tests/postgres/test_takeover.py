"""A takeover from the core through the driver to the real database: the disk before it, and the
measured outage after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from ha_engine.core import HighWater, LeaseTiming
from ha_engine.core import inputs as on
from ha_engine.core.messages import Heartbeat, Message
from ha_engine.errors import DatabaseUnreachable, DiskFailed, NotActive
from ha_engine.node.driver import Driver
from ha_engine.node.ports import Ports
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.stats.counters import NodeCounters
from ha_engine.types import Events, Holder, LeaseRow, Member, Record, Role
from tests.core.lone import member_b
from tests.waiting import async_wait_until

A, B = Member("a", "ja"), Member("b", "jb")
HELD_BY_A = LeaseRow("group-1", Holder("a", "p1"), 1, 1, (A, B))
TIMING = LeaseTiming(ttl=1.0, renew_interval=0.1, margin=0.1)
DB_TIMEOUT = 20.0


@dataclass
class Edge:
    """Every port but the database: the disk is quick, and there is no other node."""

    driver: Driver
    written: list[Record] = field(default_factory=list)

    def append(self, records: Sequence[Record]) -> None:
        self.written += records
        last = records[-1].position.sequence
        asyncio.get_running_loop().call_soon(self.driver.durable, last)

    def appended(self, records: Sequence[Record]) -> None: ...
    def open(self) -> None: ...
    def close(self, reason: str, active: str | None) -> None: ...
    def replay(self, record: Record) -> None: ...
    def send(self, peer: str, message: Message) -> None: ...
    def stream(self, peer: str, epoch: int, after: Any) -> None: ...
    def stop_streams(self) -> None: ...
    def introduce(self) -> None: ...
    def start(self, epoch: int) -> None: ...
    def admitted(self, query: str, number: int) -> None: ...
    async def stop(self) -> None: ...
    def start_process(self, incarnation: str) -> None: ...
    def stop_process(self, incarnation: str, reason: str) -> None: ...
    def run_query(self, query: Any) -> None: ...
    def answer_mark(self, mark: Any, lineage: str) -> None: ...
    def keep(self, high_water: HighWater) -> None: ...
    async def bind_group(self, group_id: str) -> None: ...
    def trim_outbox(self, query: str, through: int) -> None: ...
    async def truncate_journal(self, after: int) -> None: ...

    async def look(self) -> tuple[Any, ...]:
        return ()


class Overtaking:
    """A disk that the lease's store may overtake, if it writes within a second."""

    def __init__(self, driver: Driver, store: PostgresLeaseStore) -> None:
        self.edge, self._store, self._sent = Edge(driver), store, threading.Event()
        self.edge.keep = self._keep  # type: ignore[method-assign]
        self.by_acquire: list[bool] = []
        self.by_renewal: list[bool] = []

    def _keep(self, high_water: HighWater) -> None:
        self._sent.clear()
        if high_water.tried > (0, 0):
            self.by_acquire.append(self._sent.wait(1.0))
        elif high_water.epoch == 2 and not any(self.by_renewal):
            self.by_renewal.append(self._sent.wait(1.0))

    def compare_and_set(self, *given: Any, **named: Any) -> LeaseRow | None:
        self._sent.set()
        return self._store.compare_and_set(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class UnreachableHistory:
    def note_outage(self, epoch: int, seconds: float) -> None:
        raise DatabaseUnreachable("the database is down")


@pytest.fixture
def store(database_url: str) -> Iterator[PostgresLeaseStore]:
    engine = open_engine(database_url, statement_timeout=20)
    upgrade(engine)
    store = PostgresLeaseStore(engine, "default", TIMING.ttl, db_timeout=DB_TIMEOUT)
    store.create(HELD_BY_A)
    yield store
    store.close()


@pytest.fixture
async def driver(store: PostgresLeaseStore) -> AsyncIterator[Driver]:
    """Return a driver that ends before ``store`` is closed, since it may be calling that."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []
    driver = Driver(
        member_b(TIMING), loop.time, DB_TIMEOUT, NodeCounters(database_asked=asked.append)
    )
    yield driver
    await async_wait_until(lambda: driver.core.lease.sent_at is None)
    driver.close()
    assert asked
    assert all(0 < seconds < DB_TIMEOUT for seconds in asked)


async def take_over(driver: Driver, store: Any, outages: Any, edge: Edge | None = None) -> None:
    """Let b receive one message of a and then none; the row stays unchanged, and b takes over."""
    edge = edge or Edge(driver)
    driver.connect(Ports(*(edge, store, outages), *[edge] * 7, exit=lambda reason: None))
    driver.start()
    await async_wait_until(lambda: driver.core.role is Role.PASSIVE)
    driver.handle(on.PeerConnected("a"))
    driver.handle(on.PeerMessage("a", Heartbeat(1, 0)))
    await async_wait_until(lambda: driver.core.role is Role.ACTIVE, within=60)


async def test_outage_measured_by_a_new_holder_is_in_the_history(
    driver: Driver, store: PostgresLeaseStore
) -> None:
    await take_over(driver, store, store)
    await async_wait_until(lambda: store.history(1)[0].outage_seconds is not None)
    line = store.history(1)[0]
    assert (line.epoch, line.holder) == (2, Holder("b", "p1"))
    assert line.outage_seconds is not None
    assert TIMING.ttl / 2 < line.outage_seconds < DB_TIMEOUT
    assert driver.counters.outage_seconds == pytest.approx(line.outage_seconds)


async def test_attempt_to_acquire_is_on_disk_before_it_is_sent(
    driver: Driver, store: PostgresLeaseStore
) -> None:
    """RULES.md#r16: the next process must know of the attempt. But a renewal does not wait for the
    disk, or a slow disk would cost the lease."""
    overtaking = Overtaking(driver, store)
    await take_over(driver, overtaking, store, overtaking.edge)
    assert overtaking.by_acquire == [False]
    await async_wait_until(lambda: any(overtaking.by_renewal))


async def test_unwritable_history_is_logged_once_and_stops_nothing(
    driver: Driver, store: PostgresLeaseStore
) -> None:
    with capture_logs() as logs:
        await take_over(driver, store, UnreachableHistory())
        told = "outage not written to the history"
        await async_wait_until(lambda: any(line["event"] == told for line in logs))
    assert [line["reason"] for line in logs if line["event"] == told] == ["the database is down"]
    assert not driver.ended.done()
    assert store.history(1)[0].outage_seconds is None


async def test_failed_node_renews_nothing_and_ends_every_wait_for_a_commit(
    driver: Driver, store: PostgresLeaseStore
) -> None:
    """The disk failed, and the node's end may take long: the other node must be able to act."""
    await take_over(driver, store, store)
    behind = driver.core.journal.committed + 1
    ack = asyncio.create_task(driver.committed(behind))
    await async_wait_until(lambda: driver.acks_waiting == 1)
    await async_wait_until(lambda: driver.core.lease.sent_at is None)
    driver.fail(DiskFailed("the disk is gone"))
    with pytest.raises(NotActive, match="the disk is gone"):
        await ack
    with pytest.raises(NotActive):
        await driver.committed(behind)
    with pytest.raises(NotActive):
        driver.offer(Events("flights", 1, 0), b"")
    driver.core.lease.ask_at_once(0.0)
    driver.handle(on.Tick())
    assert driver.core.lease.sent_at is None
    assert isinstance(driver.ended.exception(), DiskFailed)
