"""The node process: the only place that sees every stage; builds, starts and stops them in order.

    python -m ha_engine.node --config FILE --process UUID

The supervisor starts it; by hand it works too, but nobody then starts Spark for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog
import uvloop

from ha_engine import logs
from ha_engine.api.cluster import cluster_of
from ha_engine.api.failover import failover_routes
from ha_engine.api.http import NodeView, application
from ha_engine.api.lease import lease_routes
from ha_engine.api.server import WebServer, listen
from ha_engine.api.status import Progress, status_of
from ha_engine.assembly import core_of, database_engine, hello_of, lease_store_of, sinks_of
from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.core import HighWater, QueryState
from ha_engine.core import inputs as on
from ha_engine.core.deployment import UNDECIDED
from ha_engine.data_dir import DataDirectory
from ha_engine.driver import Driver, Ports
from ha_engine.errors import ConfigError, EngineError
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.metrics import NodeMetrics
from ha_engine.outbox import Outbox
from ha_engine.postgres.lease_listener import LeaseListener
from ha_engine.publish import Publisher, Sink
from ha_engine.publish.delivery import Timing
from ha_engine.query.application import load_application
from ha_engine.query.service import LocalService, serve
from ha_engine.receive.backlog import LOOK_EVERY_SECONDS, Disk, NodeBacklog
from ha_engine.receive.gate import Gate
from ha_engine.receive.http import routes
from ha_engine.runtime_dir import make_runtime_dir
from ha_engine.sessions import die_with_parent
from ha_engine.sync import EventSync
from ha_engine.sync_owner import SyncOwner
from ha_engine.types import Events, Extent, Role
from ha_engine.v1 import local_pb2 as pb

log = structlog.get_logger(__name__)


def boottime() -> float:
    """The node's one clock for leases: runs on while the host sleeps, never jumps (I2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Node:
    """Everything of one node process, from the locked data directory to the open HTTP port."""

    def __init__(self, config: Config, process_id: str, living: str | None) -> None:
        self.config, self.started_at = config, time.monotonic()
        self.application = load_application(config.application)
        self.data = DataDirectory(config.node.data_dir)
        self.journal = Journal.open(
            self.data.journal, group=config.group, segment_size=config.journal.segment_size
        )
        self.outbox = Outbox.open(
            self.data.outbox,
            max_batches=config.outbox.max_batches,
            max_bytes=config.outbox.max_bytes,
            living=living,
        )
        self.progress: dict[str, Progress] = {}
        self.core = core_of(
            config, self.application, self.journal, process_id, self.data.high_water()
        )
        if living:
            self.core.querying.process.adopt(living)
        self.driver = Driver(self.core, boottime, config.lease.db_timeout)
        self.writer = JournalWriter(
            self.journal,
            self.driver.durable,
            self.driver.fail,
            # The gate's own bound lies below: what the core has given a position always fits.
            pending_bytes_max=2 * config.receive.max_pending + (64 << 20),
        )
        self.metrics = NodeMetrics(config.group, config.node.id, self.status)
        self.disk = Disk(self.data.path, config.journal.min_free)
        self.gate = self._closed_gate()
        self._restore()
        self.sinks = sinks_of(config, self.application)
        self.publisher = self._stopped_publisher()
        self.local = LocalService(
            self.driver, self, self.outbox, self._sinks_of, self.publisher.admitted, self
        )
        self.lease_store = lease_store_of(config)
        hello = hello_of(config, self.application, self.journal, process_id)
        owner = SyncOwner(self.driver, self.writer, hello)
        self.peers = EventSync(config.event_sync, self.journal, owner)
        self.listener = self._listener()
        # A connection of its own: no renewal waits for what an operator asks.
        self.lease_admin = lease_store_of(config)

    def _listener(self) -> LeaseListener:
        """Its word only makes a change be read sooner: polling alone suffices."""
        config, loop = self.config, asyncio.get_running_loop()

        def heard() -> None:
            loop.call_soon_threadsafe(self.driver.handle, on.LeaseChanged())

        engine = database_engine(config, None, config.lease.db_timeout)
        return LeaseListener(engine, config.group, heard, schema=config.database.schema_name)

    def _closed_gate(self) -> Gate:
        schemas = {name: stream.arrow_schema for name, stream in self.application.streams.items()}
        backlog = NodeBacklog(
            self.core.deployment.backlog_events,
            self.config.receive.max_backlog_events,
            self.disk,
            self._full_member,
        )
        return Gate(
            schemas,
            self.driver,
            backlog,
            self.config.receive,
            lambda: time.time_ns() // 1000,
            self.metrics.gate,
        )

    def _stopped_publisher(self) -> Publisher:
        publish = self.config.publish
        return Publisher(
            self.outbox,
            self.sinks,
            self,
            on_published=self._published,
            on_fenced=self._fenced,
            group_id=lambda: self.core.group_id or "",
            timing=Timing(publish.timeout, publish.retry_backoff_max),
            start_after={
                (query, sink): self.core.deployment.marks[query].start_after(sink)
                for query, sink in self.sinks
            },
        )

    # -- life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until it is asked to stop. Raises what broke it."""
        self.publisher.failed.add_done_callback(self._publisher_died)
        self.driver.connect(
            Ports(
                self.writer,
                self.lease_store,
                self.lease_admin,
                self.gate,
                self.publisher,
                self.local,
                self,
                self.peers,
                self._exit,
            )
        )
        web_socket = listen(self.config.http.listen)
        runtime_dir = make_runtime_dir(self.config.socket_path.parent)
        local_server = await serve(self.local, str(runtime_dir / self.config.socket_path.name))
        web = self._web()
        await self.peers.start()
        if self.config.event_sync.peers:
            self.listener.start()
        tasks = [
            self._watch(web.serve(sockets=[web_socket]), "http"),
            self._watch(self._tick(), "tick"),
            self._watch(self._look_at_disk(), "disk"),
        ]
        try:
            await self.driver.ended
        finally:
            await self._shut(web, local_server, tasks)

    async def _shut(
        self, web: WebServer, local_server: Any, tasks: list[asyncio.Task[None]]
    ) -> None:
        web.should_exit = True
        await self.peers.stop()
        await asyncio.to_thread(self.listener.stop)
        await self.publisher.close()
        await self.writer.close()
        self.driver.close()
        self.lease_admin.close()
        await local_server.stop(grace=0.2)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        self.journal.close()
        self.data.close()

    def _exit(self, reason: str) -> None:
        """The core ends the node: as it was asked to, or because going on is of no use."""
        if self.core.stopping:
            self.driver.end()
        else:
            self.driver.fail(ConfigError(reason))

    def stop(self) -> None:
        log.info("stopping")
        self.driver.handle(on.StopAsked())

    async def _tick(self) -> None:
        """The supervisor says first what still runs, so that no second query process is started."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.local.supervised.wait(), 10)
        await self.driver.tick()

    async def _look_at_disk(self) -> None:
        """R30: the peer hears with the next ack that there is no room, and that there is again."""
        had_room = True
        while True:
            has_room = self.disk.has_room
            if has_room != had_room:
                had_room = has_room
                log.warning(
                    "the disk has room for events" if has_room else "the disk is nearly full",
                    directory=str(self.disk.directory),
                    min_free=self.disk.min_free,
                )
                self.driver.handle(on.RoomChanged(has_room))
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    def _full_member(self) -> str | None:
        return self.core.tenure.full_member() if self.core.tenure else None

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A background task that ends takes the node down, with its reason."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self.driver.fail(error)

        return asyncio.create_task(run(), name=name)

    def _restore(self) -> None:
        began = time.monotonic()
        for record in self.journal.read(self.journal.first, payloads=False):
            self.core.restore(record)
            if isinstance(record.body, Events):
                self.gate.replay(record)
        for name, marks in self.core.deployment.marks.items():
            self.outbox.restore_floor(name, marks.restore_floor(self.outbox.first(name)))
            for number in range(self.outbox.floor(name) + 1, self.outbox.last_admitted(name) + 1):
                batch = self.outbox.batch(name, number)
                if batch is not None:
                    self.core.deployment.restore_admitted(name, number, batch.rows, batch.bytes)
        self.core.deployment.restore_done()
        if self.journal.torn:
            log.warning("a torn tail was cut from the journal", what=self.journal.torn)
        log.info(
            "journal read",
            last=str(self.core.journal.last),
            seconds=round(time.monotonic() - began, 3),
        )

    def _web(self) -> WebServer:
        view = NodeView(
            self.status,
            self.cluster,
            self.metrics.exposition,
            self._skip,
            self._retry,
            self._alive,
            self._switch_over,
        )
        others = [
            *routes(self.gate, self.config.http.max_body),
            *lease_routes(self.lease_admin, self.config.group),
            *failover_routes(self.core, self.driver.handle),
        ]
        return WebServer(application(view, others), self.config.http)

    # -- what stages ask ---------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return status_of(
            self.core,
            self.config.group,
            self.metrics.gate,
            self.publisher.status(),
            self.progress,
            self.peers,
            self.driver.tally,
            self.started_at,
        )

    def cluster(self) -> dict[str, Any]:
        return cluster_of(self.core, self.config.group, self.peers)

    def incarnation(self) -> str | None:
        return self.core.querying.process.incarnation

    def skipped(self, query: str, number: int) -> bool:
        return (query, number) in self.core.deployment.skips

    def was_made_by_other_code(self, query: str, number: int) -> bool:
        return self.core.deployment.was_made_by_other_code(query, number)

    def locate(self, first: int, last: int) -> list[Extent]:
        return self.journal.locate(first, last)

    def remaining_seconds(self) -> float:
        """The publisher's authority (R17)."""
        return self.core.authority_seconds(boottime())

    def last_mark(self, query: str) -> float:
        return self.core.deployment.marks[query].ledger_end_max

    def keep(self, high_water: HighWater) -> None:
        self.data.keep(high_water)

    def bind_group(self, group_id: str) -> None:
        self.journal.bind_group(group_id)

    def trim_outbox(self, query: str, through: int) -> None:
        self.outbox.trim(query, through)

    async def cut_journal(self, after: int, *, set_aside: bool) -> None:
        if not set_aside:
            await self.writer.run_exclusive(lambda: self.journal.truncate_after(after))
            return
        # First what was made from the records that go; a crash in between makes it anew.
        await asyncio.to_thread(self.outbox.drop_all)
        kept = await self.writer.run_exclusive(lambda: self.journal.give_up_after(after))
        log.warning("committed records were given up by a forced failover", kept_in=str(kept))

    def _alive(self) -> bool:
        return not self.driver.ended.done()

    def _switch_over(self, to: str | None, by: str) -> str:
        """Why not; empty when it has begun."""
        refusal = self.core.why_no_switchover(to)
        if refusal is None:
            self.driver.handle(on.SwitchoverAsked(to, by))
        return refusal or ""

    def _skip(self, query: str, by: str) -> str:
        """Why not; empty when the query goes on."""
        life = self.core.deployment.lives[query]
        if life.state is not QueryState.FAILED:
            return f"query {query} has not failed; there is nothing to skip"
        if self.core.role is not Role.ACTIVE:
            return "this node is not active; ask the active"
        if life.failure is not None and life.failure.reason == UNDECIDED:
            return f"query {query} waits for a decision and not for a skip: {UNDECIDED}"
        self.driver.handle(on.SkipAsked(query, by))
        return ""

    def _retry(self, query: str) -> str:
        """Why not; empty when the query tries its batch again."""
        life = self.core.deployment.lives[query]
        if life.state is not QueryState.FAILED:
            return f"query {query} has not failed; there is nothing to retry"
        if life.failure is not None and life.failure.reason == UNDECIDED:
            return f"query {query} waits for a decision and not for a retry: {UNDECIDED}"
        self.driver.handle(on.RetryAsked(query))
        return ""

    # -- what stages tell --------------------------------------------------------------------------

    def progressed(self, query: str, progress: pb.QueryProgress) -> None:
        self.progress[query] = Progress(
            progress.number,
            progress.input_rows,
            progress.duration_ms,
            progress.watermark,
            progress.dropped_by_watermark,
            progress.state_rows,
            progress.state_bytes,
        )
        self.metrics.observe_batch(query, progress.duration_ms / 1000)

    def _sinks_of(self, query: str) -> dict[str, Sink]:
        return {sink: opened for (name, sink), opened in self.sinks.items() if name == query}

    def _published(self, query: str, sink: str, batch: int) -> None:
        self.driver.handle(on.SinkPublished(query, sink, batch))

    def _publisher_died(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self.driver.fail(error)

    def _fenced(self, epoch: int) -> None:
        self.driver.handle(on.HigherEpochSeen(epoch, "a sink's ledger"))


async def _main(config: Config, process_id: str, living: str | None) -> None:
    node = Node(config, process_id, living)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    await node.run()


def main() -> int:
    """Entry of the node process; the exit code tells the supervisor whether a restart is of use."""
    parser = argparse.ArgumentParser(prog="ha_engine.node", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--process", default=str(uuid.uuid4()))
    parser.add_argument("--parent", type=int, help="pid without which this process must end")
    parser.add_argument("--living", help="incarnation of a query process that still runs")
    arguments = parser.parse_args()
    if arguments.parent:
        die_with_parent(arguments.parent)
    try:
        config = load_config(arguments.config, os.environ)
        logs.configure(config.log, node=config.node.id, process="node")
        uvloop.run(_main(config, arguments.process, arguments.living))
    except EngineError as error:
        log.error("the node process ends", reason=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
