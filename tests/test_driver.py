"""The driver sleeps until the moment that its core names. Time passes only in its sleep here."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ha_engine.core import Deployment, HighWater, JournalState, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import DiskFailed, NotActive
from ha_engine.node.alarm import SLEEP_SECONDS_MIN
from ha_engine.node.driver import Driver
from ha_engine.types import (
    DatabaseIdentity,
    Events,
    History,
    Holder,
    LeaseRow,
    Mark,
    Position,
    Record,
    Role,
)
from tests.core.world import LIMITS
from tests.waiting import async_wait_until

INPUT = on.LeaseChanged()
WITHIN = 10.0


class SleepingSelector(selectors.DefaultSelector):
    """A selector that does not wait, and records the time that it would have waited."""

    slept = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.slept += timeout or 0.0
        return super().select(0)


class WakingCore:
    """A core that requests ticks at ``moments``, one after the other, and records the real ones."""

    role, stopping = Role.PASSIVE, False

    def __init__(self, *moments: float) -> None:
        self.moments = [*moments]
        self.ticks: list[float] = []
        self.other = 0

    def wake_at(self) -> float:
        return self.moments[0] if self.moments else math.inf

    def step(self, now: float, event: on.Input) -> list[Any]:
        if isinstance(event, on.Tick):
            self.ticks.append(now)
            self.moments = self.moments[1:]
        else:
            self.other += 1
        return []


def run(core: Any, test: Callable[[Driver], Awaitable[None]]) -> SleepingSelector:
    selector = SleepingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.slept  # type: ignore[method-assign]

    async def main() -> None:
        driver = Driver(core, loop.time, 0.5)
        driver.start()
        await test(driver)
        driver.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return selector


def test_core_gets_a_tick_at_each_requested_moment_and_no_other() -> None:
    core = WakingCore(1.0, 30.0, 3000.0)

    async def sleep(driver: Driver) -> None:
        await asyncio.sleep(10_000)

    run(core, sleep)
    assert [round(at, 2) for at in core.ticks] == [1.0, 30.0, 3000.0]


def test_driver_ticks_earlier_when_an_input_advances_the_moment() -> None:
    core = WakingCore(100.0)

    async def bring_forward(driver: Driver) -> None:
        await asyncio.sleep(1)
        core.moments = [2.0]
        driver.handle(INPUT)
        await asyncio.sleep(200)

    run(core, bring_forward)
    assert [round(at, 2) for at in core.ticks] == [2.0]


def test_moment_postponed_by_an_input_causes_no_tick() -> None:
    core = WakingCore(2.0)

    async def put_off(driver: Driver) -> None:
        await asyncio.sleep(1)
        core.moments = [50.0]
        driver.handle(INPUT)
        await asyncio.sleep(200)

    run(core, put_off)
    assert [round(at, 2) for at in core.ticks] == [50.0]


def test_core_that_always_requests_a_tick_does_not_block_the_loop() -> None:
    core = WakingCore(*[-math.inf] * 100)

    async def sleep(driver: Driver) -> None:
        await asyncio.sleep(1)

    run(core, sleep)
    assert len(core.ticks) == 100
    gaps = [after - before for before, after in zip(core.ticks, core.ticks[1:], strict=False)]
    assert min(gaps) >= SLEEP_SECONDS_MIN * 0.99


def test_inputs_in_quick_succession_do_not_delay_a_tick() -> None:
    core = WakingCore(0.0)

    async def flood(driver: Driver) -> None:
        for n in range(20):
            core.moments = core.moments and [-float(n)]
            driver.handle(INPUT)
            await asyncio.sleep(SLEEP_SECONDS_MIN / 4)

    run(core, flood)
    assert core.other == 20
    assert len(core.ticks) == 1
    assert core.ticks[0] < 3 * SLEEP_SECONDS_MIN


def test_ended_driver_causes_no_tick() -> None:
    core = WakingCore(5.0)

    async def end(driver: Driver) -> None:
        driver.end()
        await asyncio.sleep(20)

    run(core, end)
    assert core.ticks == []


class HungDisk:
    """The ports of a driver whose disk returns from ``keep`` only when ``returns`` is released."""

    def __init__(self) -> None:
        self.storage, self.lease_store = self, self
        self.returns = threading.Semaphore(0)
        self.asked: list[str] = []

    def keep(self, high_water: HighWater) -> None:
        self.returns.acquire(timeout=20)

    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow:
        self.asked.append("create")
        return row

    def compare_and_set(self, expected: LeaseRow, wanted: LeaseRow, *, reason: str) -> LeaseRow:
        self.asked.append("renew")
        return wanted

    def identity(self) -> DatabaseIdentity:
        return DatabaseIdentity("1", "1")


class Acquiring(WakingCore):
    """A core that acquires the lease at each tick."""

    def step(self, now: float, event: on.Input) -> list[Any]:
        super().step(now, event)
        if not isinstance(event, on.Tick):
            return []
        row = LeaseRow("g", Holder("a", "p"), 1, 1, ())
        return [do.KeepHighWater(HighWater(tried=(1, 1))), do.CreateLease(row, "first")]


async def test_disk_that_hangs_before_an_acquisition_ends_the_node() -> None:
    disk, stuck = HungDisk(), asyncio.Event()
    driver = Driver(
        Acquiring(0.0), asyncio.get_running_loop().time, 0.5, None, stuck.set, stuck_after=0.3
    )
    driver.connect(disk)  # type: ignore[arg-type]
    driver.start()
    await async_wait_until(lambda: driver.disk_is_late)
    await asyncio.wait_for(stuck.wait(), 10)
    assert disk.asked == []
    disk.returns.release()
    await async_wait_until(lambda: disk.asked == ["create"] and not driver.disk_is_late)
    driver.close()


class Renewing(WakingCore):
    """A core that begins a change of a file with its first tick, and renews the lease."""

    def step(self, now: float, event: on.Input) -> list[Any]:
        super().step(now, event)
        if not isinstance(event, on.Tick):
            return []
        row = LeaseRow("g", Holder("a", "p"), 1, 1, ())
        return [
            do.KeepHighWater(HighWater(tried=(1, 1))),
            do.WriteLease(row, replace(row, version=2), "renewal"),
        ]


async def test_renewal_does_not_wait_for_a_slow_disk() -> None:
    disk = HungDisk()
    driver = Driver(Renewing(0.0), asyncio.get_running_loop().time, 0.5)
    driver.connect(disk)  # type: ignore[arg-type]
    driver.start()
    await async_wait_until(lambda: disk.asked == ["renew"])
    disk.returns.release()
    driver.close()


async def test_each_change_of_a_file_has_its_own_time() -> None:
    disk, clock = HungDisk(), asyncio.get_running_loop().time
    driver = Driver(Acquiring(0.0, 0.0), clock, 0.5, None, stuck_after=6.0)
    driver.connect(disk)  # type: ignore[arg-type]
    driver.start()
    for _ in range(2):
        await async_wait_until(lambda: driver.disk_is_late)
        disk.returns.release()
        await async_wait_until(lambda: not driver.disk_is_late)
    driver.close()


class ActingCore(WakingCore):
    """A core whose next step returns ``acts``."""

    receiving = holds_epoch = True
    reason, epoch = "a reason", 1

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[do.Action] = []
        self.journal = JournalState(Deployment("app", (), LIMITS, RestartPolicy()))

    def step(self, now: float, event: on.Input) -> list[Any]:
        super().step(now, event)
        acts, self.acts = self.acts, []
        return acts


class Recorder:
    """The ports of a driver, which record the calls; the disk fails."""

    def __init__(self) -> None:
        self.appender = self.peers = self.receivers = self.storage = self
        self.snapshots = self.publishing = self.process_link = self
        self.replayed: list[Record] = []
        # The runs whose state is on its way, and those that reached the query process.
        self.on_their_way: list[asyncio.Future[None]] = []
        self.runs: list[do.RunQuery] = []

    def append(self, records: Sequence[Record]) -> None: ...
    def appended(self, records: Sequence[Record]) -> None: ...

    def replay(self, record: Record) -> None:
        self.replayed.append(record)

    def trim_outbox(self, query: str, through: int) -> None:
        raise DiskFailed("the disk is gone")

    async def bring_state(self, run: do.RunQuery, history: History) -> None:
        self.on_their_way.append(asyncio.get_running_loop().create_future())
        await self.on_their_way[-1]

    def admitted(self, query: str, number: int) -> None: ...

    def run_query(self, run: do.RunQuery) -> None:
        self.runs.append(run)


@pytest.fixture
async def acting() -> AsyncIterator[tuple[ActingCore, Driver, Recorder]]:
    core, ports = ActingCore(), Recorder()
    driver = Driver(core, asyncio.get_running_loop().time, 0.5)  # type: ignore[arg-type]
    driver.connect(ports)  # type: ignore[arg-type]
    yield core, driver, ports
    driver.close()


Acting = tuple[ActingCore, Driver, Recorder]


def act(acting: Acting, *acts: do.Action) -> None:
    core, driver, _ = acting
    core.acts = [*acts]
    driver.handle(INPUT)


async def test_call_waits_for_the_commit_of_its_own_record(acting: Acting) -> None:
    _, driver, _ = acting
    third, fifth = (asyncio.create_task(driver.committed(n)) for n in (3, 5))
    await async_wait_until(lambda: driver.acks_waiting == 2)
    act(acting, do.Commit(3))
    await asyncio.wait_for(third, WITHIN)
    assert not fifth.done()
    act(acting, do.Commit(5))
    await asyncio.wait_for(fifth, WITHIN)


async def test_passive_answers_only_for_a_committed_record(acting: Acting) -> None:
    core, driver, _ = acting
    core.holds_epoch, core.journal.committed = False, 7
    await asyncio.wait_for(driver.committed(7), WITHIN)
    with pytest.raises(NotActive, match="a reason"):
        await asyncio.wait_for(driver.committed(8), WITHIN)


async def test_demotion_refuses_the_calls_that_wait(acting: Acting) -> None:
    _, driver, _ = acting
    waiting = asyncio.create_task(driver.committed(3))
    await async_wait_until(lambda: driver.acks_waiting == 1)
    act(acting, do.ChangeRole(Role.DEMOTING, 1, "the lease is lost"))
    with pytest.raises(NotActive, match="the lease is lost"):
        await asyncio.wait_for(waiting, WITHIN)


async def test_ended_driver_refuses_calls_and_steps_no_core(acting: Acting) -> None:
    core, driver, _ = acting
    waiting = asyncio.create_task(driver.committed(3))
    await async_wait_until(lambda: driver.acks_waiting == 1)
    driver.fail(DiskFailed("the disk is gone"))
    with pytest.raises(NotActive, match="the disk is gone"):
        await asyncio.wait_for(waiting, WITHIN)
    with pytest.raises(NotActive):
        driver.offer(Events("flights", 1, 0), b"")
    driver.handle(INPUT)
    assert core.other == 0
    with pytest.raises(DiskFailed):
        await driver.ended


async def test_failed_change_of_a_small_file_ends_the_node(acting: Acting) -> None:
    _, driver, _ = acting
    act(acting, do.TrimOutbox("delays", 3))
    with pytest.raises(DiskFailed, match="the disk is gone"):
        await asyncio.wait_for(driver.ended, WITHIN)


async def test_gate_replays_only_the_records_of_another_node(acting: Acting) -> None:
    core, _, ports = acting
    mine, theirs = (Record(Position(1, n), 0, Events("flights", 1, 0)) for n in (1, 2))
    act(acting, do.AppendRecords((mine,)))
    core.holds_epoch = False
    act(acting, do.AppendRecords((theirs,)))
    assert ports.replayed == [theirs]


async def test_only_the_newest_run_of_a_query_writes_to_its_checkpoint(acting: Acting) -> None:
    """The query process ended while the state for the first run was on its way."""
    _, _, ports = acting
    begin = Mark("q", 0, 0)
    first, newest = (
        do.RunQuery("q", "j:1", begin, False, "d", takeover=do.Takeover(1, published, ()))
        for published in (4, 6)
    )
    act(acting, first)
    act(acting, newest)
    await async_wait_until(lambda: len(ports.on_their_way) == 2)
    for one in ports.on_their_way:
        one.set_result(None)
    await async_wait_until(lambda: newest in ports.runs)
    assert ports.runs == [newest]


async def test_node_that_is_no_longer_the_active_starts_no_warm_query(acting: Acting) -> None:
    core, _, ports = acting
    run_in = [
        do.RunQuery(name, "j:1", Mark(name, 0, 0), False, "d", takeover=do.Takeover(epoch, 0, ()))
        for name, epoch in (("former", 1), ("present", 2))
    ]
    act(acting, *run_in)
    await async_wait_until(lambda: len(ports.on_their_way) == 2)
    core.epoch = 2
    for one in ports.on_their_way:
        one.set_result(None)
    await async_wait_until(lambda: bool(ports.runs))
    assert [one.query for one in ports.runs] == ["present"]
