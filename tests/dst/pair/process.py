"""One node process: the stages of a node, connected as ``ha_engine.node.node`` connects them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ha_engine.api.cluster import report_of
from ha_engine.config import EventSyncConfig
from ha_engine.core import Core, NodeIdentity
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import Backpressure, ConfigError, DatabaseUnreachable
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.adapters import LocalAnswers, SyncOwner
from ha_engine.node.data_dir import DataDirectory
from ha_engine.node.driver import Driver
from ha_engine.node.lease_release import release_within
from ha_engine.node.local_service import LocalService
from ha_engine.node.ports import Ports
from ha_engine.node.storage import NodeStorage, replay
from ha_engine.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches
from ha_engine.publish import Publisher
from ha_engine.publish.delivery import Timing
from ha_engine.receive.gate import Gate
from ha_engine.receive.receivers import Receivers
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import Places, finish
from ha_engine.sync import EventSync, Hello, Report
from ha_engine.types import Holder
from ha_engine.v1 import local_pb2 as pb
from tests.dst.disk import Crashed, SimulatedFiles
from tests.dst.loop import ProcessLoop, Thread
from tests.dst.pair.database import DB_TIMEOUT, NodeLeaseStore, NodeSink
from tests.dst.pair.group import (
    GROUP,
    LOOK_SECONDS,
    PEERS,
    RECEIVE,
    SEGMENT_BYTES,
    SNAPSHOT_INTERVAL,
    STREAMS,
    STUCK_SECONDS,
    TIMING,
)
from tests.dst.pair.network import HostTransport
from tests.dst.pair.snapshots import NodeSnapshots

if TYPE_CHECKING:
    from tests.dst.pair.host import Host


def sync_config(peer: str) -> EventSyncConfig:
    return EventSyncConfig.model_validate(
        {
            "peers": {peer: f"{peer}:9893"},
            "insecure": True,
            "sync_timeout": f"{PEERS.sync_timeout}s",
            "heartbeat_interval": f"{PEERS.heartbeat_interval}s",
        }
    )


class JudgedCore(Core):
    """The core, each of whose steps a judge sees. A dead process makes no step."""

    process: NodeProcess

    def step(self, now: float, event: on.Input) -> list[do.Action]:
        if self.process.dead:
            raise Crashed
        self.process.host.history.judge.takes(self.process, event)
        actions = super().step(now, event)
        self.process.host.history.judge.stepped(self.process, event, actions)
        return actions


class NodeProcess:
    """A node process on ``host``, with the name ``name``. It is also the publisher's authority and
    the observer of the query process."""

    by_node = True

    def __init__(self, host: Host, name: str, earlier: str | None) -> None:
        self.host, self.name, self._earlier = host, name, earlier
        self.application = host.application
        self.me = Holder(host.name, name)
        self.dead = self.serves = False
        self.files = SimulatedFiles(host.disk, self.kill)
        self.loop = ProcessLoop(host.history.agenda, host.history.random, self._take_delay)
        self._delay = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: list[Callable[[], None]] = []
        self.transport = HostTransport(host.history.network, self)

    def charge(self, seconds: float) -> None:
        """Let the present call in a thread take ``seconds``."""
        self._delay += seconds

    def _take_delay(self) -> float:
        delay, self._delay = self._delay + self.files.take_delay(), 0.0
        return delay

    def clock(self) -> float:
        return self.host.clock()

    def _wall_clock_us(self) -> int:
        return int(self.host.history.agenda.now * 1_000_000)

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the stages and run them. Raises Crashed, or the error that prevents the start."""
        self.loop.run(self._make)
        self._task(self._run())

    def kill(self) -> None:
        """Die, as by SIGKILL."""
        if not self.dead:
            self._ended()
            self.host.node_died(self, None)

    def _ended(self) -> None:
        self.dead, self.serves = True, False
        self.files.dead = True
        self.loop.kill()
        self.transport.gone()
        agenda = self.host.history.agenda
        agenda.after(0.0, self._dispose)

    def _dispose(self) -> None:
        self.loop.dispose()
        self.close()

    def close(self) -> None:
        """Close the files of the dead process."""
        for close in reversed(self._closing):
            close()
        self._closing.clear()

    def _make(self) -> None:
        host, home, files = self.host, self.host.home, self.files
        self.data = DataDirectory(home, self.name, files)
        self._closing.append(self.data.close)
        host.history.counts["restores"] += finish(
            Places(home, host.checkpoints), CheckpointDirectories(host.checkpoints, files), files
        )
        self.journal = Journal.open(
            self.data.journal, group=GROUP, segment_size=SEGMENT_BYTES, files=files
        )
        self._closing.append(self.journal.close)
        living = host.spark.incarnation if host.spark is not None else None
        self.outbox = Outbox.open(self.data.outbox, living=living, files=files)
        self.core = self._core()
        self.driver = Driver(
            self.core, self.clock, DB_TIMEOUT, None, self._stuck, stuck_after=STUCK_SECONDS
        )
        self.writer = JournalWriter(
            self.journal,
            self.driver.durable,
            self.driver.fail,
            self._stuck,
            stuck_after=STUCK_SECONDS,
            thread=Thread(self.loop),
        )
        self.gate = Gate(STREAMS, self.driver, self, RECEIVE, self._wall_clock_us)
        replay(self.data.base, self.journal, self.outbox, self.core, self.gate)
        self.publisher = self._publisher()
        self.publisher.failed.add_done_callback(self._stage_died)
        answers = LocalAnswers(self.core, self.journal, self.gate.logs)
        self.local = LocalService(
            self.driver,
            answers,
            self.outbox,
            lambda query: {},
            self.publisher.admitted,
            self,
            self._stuck,
            STUCK_SECONDS,
        )
        self.peers = EventSync(
            sync_config(host.peer),
            self.journal,
            SyncOwner(self.driver, self.writer, self._hello(), self._report),
            Counter(),
            transport=self.transport,
            jitter=host.history.random.uniform,
        )
        self.snapshots = NodeSnapshots(self)
        lease_store = NodeLeaseStore(host.history.database, self)
        self._lease_store = lease_store
        self.driver.connect(
            Ports(
                self.writer,
                lease_store,
                lease_store,
                Receivers(self.gate, ()),
                self.publisher,
                host,
                self.local,
                NodeStorage(
                    self.data,
                    self.journal,
                    self.writer,
                    self.outbox,
                    PublishedBatches(self.data.published, 0, 0),
                    self.data.path / "checkpoints",
                ),
                self.peers,
                self.snapshots,
                self._exit,
            )
        )
        host.history.judge.started(self)
        if living is not None:
            self.driver.handle(on.QueryProcessAdopted(living))
        if host.disk.full:
            self.driver.handle(on.HeadroomChanged(False))

    def _core(self) -> JudgedCore:
        host, journal = self.host, self.journal
        identity = NodeIdentity(
            host.name,
            self.name,
            journal.journal_id,
            journal.group_id,
            f"group of {host.name}",
            f"http://{host.name}",
            (host.peer,),
        )
        high_water, deployment = self.data.high_water(), self.application.deployment()
        core = JudgedCore(identity, TIMING, high_water, deployment, PEERS, SNAPSHOT_INTERVAL)
        core.process = self
        return core

    def _publisher(self) -> Publisher:
        database, core = self.host.history.database, self.core
        sinks = {
            (query, name): NodeSink(database, self, query, name) for query, name in database.ledgers
        }
        return Publisher(
            self.outbox,
            sinks,
            self,
            on_published=lambda *key: self.driver.handle(on.SinkPublished(*key)),
            on_fenced=lambda epoch: self.driver.handle(
                on.HigherEpochSeen(epoch, "a sink's ledger")
            ),
            group_id=lambda: core.group_id or "",
            timing=Timing(2.0, backoff_max=0.5, jitter=self._pause),
            start_after=lambda query, sink: core.deployment.marks[query].start_after(sink),
        )

    def _pause(self, low: float, high: float) -> float:
        return self.host.history.random.uniform(low, min(high, 2.0))

    def _hello(self) -> Hello:
        return Hello(
            engine="0",
            group=GROUP,
            group_id=self.journal.group_id or "",
            node=self.host.name,
            process=self.name,
            journal_id=self.journal.journal_id,
            application=self.application.digest,
            config="config",
            runtime={},
            address=self.host.name,
        )

    def _report(self) -> Report:
        return report_of(self.core, self.clock(), 0)

    async def _run(self) -> None:
        await self.peers.start()
        self.serves = True
        self.driver.start()
        self._task(self._watch_revisions())
        if self._earlier is not None:
            self._task(self._release(self._earlier))
        error: BaseException | None = None
        try:
            await self.driver.ended
        except Exception as ended:
            error = ended
        self.serves = False
        await self._shut()
        if not self.dead:
            self._ended()
            self.host.node_died(self, error)

    async def _shut(self) -> None:
        await self.peers.stop()
        await self.publisher.close()
        await self.writer.close()
        self.driver.close()

    async def _watch_revisions(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(DatabaseUnreachable):
                self.driver.handle(on.RevisionsKept(await self.snapshots.look()))

    async def _release(self, earlier: str) -> None:
        dead, home = Holder(self.host.name, earlier), self.host.home
        await release_within(self._lease_store, dead, home, TIMING.ttl)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.loop.create_task(work))

    def _stage_died(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self.driver.fail(error)

    def _stuck(self) -> None:
        self.host.history.counts["ends of a stuck process"] += 1
        self.kill()

    def _exit(self, reason: str) -> None:
        if self.core.stopping:
            self.driver.end()
        else:
            self.driver.fail(ConfigError(reason))

    # -- what its stages ask -----------------------------------------------------------------------

    def remaining_seconds(self) -> float:
        return self.core.authority_seconds(self.clock())

    def highest_planned(self, query: str) -> float:
        return self.core.deployment.marks[query].ledger_end_max

    def refusal(self, stream: str) -> Backpressure | None:
        full = self.core.term.full_member() if self.core.term else None
        if self.host.disk.full or full is not None:
            return Backpressure("a disk is full")
        return None

    def progressed(self, query: str, progress: pb.QueryProgress) -> None:
        """Note nothing about the progress of a query."""

    def saw_executors(self, report: pb.ReportExecutorsRequest) -> None:
        """Note nothing about executors, since there is no cluster."""

    def orphaned(self) -> None:
        self.host.history.counts["orphaned query processes"] += 1

    # -- calls from other processes ----------------------------------------------------------------

    def feed(self, event: on.Input) -> None:
        """Give the core an input from outside, unless the process has ended."""
        self.loop.call_soon(self._feed, event)

    def _feed(self, event: on.Input) -> None:
        if self.serves:
            self.driver.handle(event)

    def serve(self, call: Callable[[], Awaitable[Any]], answer: Callable[[Any], None]) -> None:
        """Run ``call`` on the event loop of the process, and give its outcome, a value or an
        exception, to ``answer``."""

        async def run() -> None:
            try:
                outcome: Any = await call()
            except Exception as error:
                outcome = error
            answer(outcome)

        def begin() -> None:
            if self.serves:
                self.loop.create_task(run())

        self.loop.call_soon(begin)
