"""The parent process: keeps the node process and the query process alive, each in its own session.

It decides little: the node process is restarted when it dies, and says over the local socket which
query process it wants. What it adds is certainty about death: a query process counts as gone only
when no process of its session is left (R20), and the lease is released the moment the node process
has been reaped, or with the start of this one, if the one before it died with its node process. It
holds no state that a restart would miss.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from ha_engine import logs
from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.directory_lock import last_process
from ha_engine.errors import EngineError, QueryProcessFailed
from ha_engine.notify import ServiceManager
from ha_engine.query.lifeline import ProcessId
from ha_engine.releasing import LeaseStore, Releases
from ha_engine.sessions import MARKER, kill_session, members
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1 import local_pb2_grpc as rpc

log = structlog.get_logger(__name__)

_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.enable_http_proxy", 0),
)
STOP_SECONDS = 20.0
QUERY_STOP_SECONDS = 4.0
BACKOFF_SECONDS_MAX = 10.0
SETTLED_SECONDS = 30.0
"""A node process that lived so long starts again at once."""
WRONG_USAGE = 2
"""Exit code of a node process that a restart would not help."""


@dataclass
class Child:
    """One living child process."""

    process: asyncio.subprocess.Process
    name: str
    started_at: float


class Supervisor:
    """Runs until it is told to stop, or until restarting the node process is of no use."""

    def __init__(
        self,
        config: Config,
        config_path: Path | None,
        store: LeaseStore,
        service: Mapping[str, str],
    ) -> None:
        """``service`` is what the node process is to know of the service manager."""
        self._config, self._config_path = config, config_path
        self._releases = Releases(store, config.node.id, config.node.data_dir)
        self._service = service
        self._home = str(config.node.data_dir.resolve())
        self._query: Child | None = None
        self._query_incarnation = ""
        self._query_ended: asyncio.Task[None] | None = None
        # Of the stream that is open now: what an older one did not tell is told by its first event.
        self._events: asyncio.Queue[pb.SupervisorEvent] = asyncio.Queue()
        self._stopping, self._reload_asked = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    def reload(self) -> None:
        """Its own log's settings; everything else, and what is wrong, is the node process's."""
        with contextlib.suppress(EngineError, OSError):
            config = load_config(self._config_path, os.environ)
            logs.configure(config.log, node=self._config.node.id, process="supervisor")
        self._reload_asked.set()

    async def run(self) -> int:
        """Returns the exit code of the command."""
        await asyncio.to_thread(kill_session, self._home, None)
        if self._stopping.is_set():
            return 0
        earlier = last_process(self._config.node.data_dir)
        releasing = asyncio.create_task(self._release_earlier(earlier), name="release")
        try:
            # Spark takes longer to start than the node process does, which adopts it.
            await self._start_query(str(uuid.uuid4()))
            return max(await self._keep_node_running(), 0)
        finally:
            releasing.cancel()
            await self._end_query("the node has stopped")

    async def _release_earlier(self, process_id: str | None) -> None:
        """Of a node process that died with its supervisor. The database may start later than
        this node does; after a ttl the lease has ended by itself."""
        if process_id is not None:
            await self._releases.release(process_id, within=self._config.lease.ttl)

    # -- node process ------------------------------------------------------------------------------

    async def _keep_node_running(self) -> int:
        """The exit code of the last node process."""
        failures = 0
        while True:
            code, lived, served = await self._run_node()
            of_no_use = code in (0, WRONG_USAGE) or (not served and code > 0)
            if self._stopping.is_set() or of_no_use:
                return code
            failures = 1 if lived > SETTLED_SECONDS else failures + 1
            doubled = 0.5 * 2.0 ** min(failures, 10)  # a power of a thousand is no float
            wait = 0.0 if failures == 1 else min(BACKOFF_SECONDS_MAX, doubled)
            log.warning("node process ended", code=code, restart_in_seconds=wait)
            if await self._stopped_within(wait):
                return code

    async def _run_node(self) -> tuple[int, float, bool]:
        """One life of the node process: exit code, seconds lived, whether it ever served."""
        process_id = str(uuid.uuid4())
        node = await self._spawn_node(process_id)
        served = asyncio.Event()
        link = asyncio.create_task(self._attend_node(served), name="node link")
        stopper = asyncio.create_task(self._stop_when_asked(node), name="stopper")
        bridge = asyncio.create_task(ServiceManager(self._service).bridge(served), name="bridge")
        reloads = asyncio.create_task(self._pass_reloads_on(node, served), name="reloads")
        tasks = (link, stopper, bridge, reloads)
        try:
            code = await node.process.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if code != 0:
            await self._releases.release(process_id)
        return code, time.monotonic() - node.started_at, served.is_set()

    async def _spawn_node(self, process_id: str) -> Child:
        config = ["--config", str(self._config_path)] if self._config_path else []
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ha_engine.node",
            *config,
            "--process",
            process_id,
            "--living",
            self._query_incarnation,
            "--parent",
            str(os.getpid()),
            env={**os.environ, **self._service},
            start_new_session=True,
        )
        log.debug("node process started", pid=process.pid)
        return Child(process, "node", time.monotonic())

    async def _stop_when_asked(self, node: Child) -> None:
        await self._stopping.wait()
        node.process.terminate()
        await asyncio.sleep(STOP_SECONDS)
        log.error("node process did not stop in time; killing it")
        node.process.kill()

    async def _pass_reloads_on(self, node: Child, served: asyncio.Event) -> None:
        """Before it serves, the signal would end the node process, which is not ready for it."""
        while True:
            await self._reload_asked.wait()
            await served.wait()
            self._reload_asked.clear()
            _signal(node.process.pid, signal.SIGHUP)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # -- link to the node --------------------------------------------------------------------------

    async def _attend_node(self, served: asyncio.Event) -> None:
        """Keeps one Supervise stream open; a broken one is opened anew."""
        target = f"unix:{self._config.socket_path}"
        async with grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
            while True:
                try:
                    await channel.channel_ready()
                    self._events = asyncio.Queue()
                    stream = rpc.LocalStub(channel).Supervise(self._tell(self._events))
                    await stream.initial_metadata()
                    served.set()
                    async for command in stream:
                        await self._obey(command)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)

    async def _tell(
        self, events: asyncio.Queue[pb.SupervisorEvent]
    ) -> AsyncIterator[pb.SupervisorEvent]:
        pid = self._query.process.pid if self._query else 0
        alive = pb.QueryProcessAlive(incarnation=self._query_incarnation, pid=pid)
        yield pb.SupervisorEvent(query_alive=alive)
        while True:
            yield await events.get()

    async def _obey(self, command: pb.SupervisorCommand) -> None:
        match command.WhichOneof("command"):
            case "start":
                await self._start_query(command.start.incarnation)
            case "stop" if command.stop.incarnation == self._query_incarnation:
                await self._end_query(command.stop.reason)

    # -- query process -----------------------------------------------------------------------------

    async def _start_query(self, incarnation: str) -> None:
        await self._end_query("another incarnation is wanted")
        try:
            process = await asyncio.create_subprocess_exec(
                *self._query_command(incarnation),
                env={**os.environ, MARKER: self._home},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._tell_gone(incarnation, f"it could not be started: {error.strerror}")
            return
        log.debug("query process started", pid=process.pid, incarnation=incarnation)
        self._query, self._query_incarnation = (
            Child(process, "query", time.monotonic()),
            incarnation,
        )
        self._query_ended = asyncio.create_task(self._reap_query(), name="query reaper")

    def _query_command(self, incarnation: str) -> list[str]:
        config = self._config
        data_dir = config.node.data_dir
        settings = {
            "query": config.query.model_dump(),
            "checkpoint_dir": str(config.checkpoint_dir),
            "outbox_dir": str(data_dir / "outbox"),
            "classes_dir": str(data_dir.absolute() / "classes"),
        }
        return [
            *(sys.executable, "-m", "ha_engine.query.main"),
            *("--socket", str(config.socket_path)),
            *("--incarnation", incarnation),
            *("--parent", str(ProcessId.of(os.getpid()))),
            *("--application", str(config.application)),
            *("--config-json", json.dumps(settings, default=str)),
        ]

    async def _reap_query(self) -> None:
        """Tells the node once the whole session is empty, however the process ended."""
        assert self._query is not None
        child, incarnation = self._query, self._query_incarnation
        code = await child.process.wait()
        while not await self._session_is_empty(child.process.pid):
            log.error("processes of the query process will not die; trying again")
        self._query, self._query_incarnation = None, ""
        self._tell_gone(incarnation, _said(code))

    async def _session_is_empty(self, session: int) -> bool:
        try:
            await asyncio.to_thread(kill_session, self._home, session)
        except QueryProcessFailed:
            return False
        return True

    def _tell_gone(self, incarnation: str, reason: str) -> None:
        log.info("query process ended", reason=reason)
        gone = pb.QueryProcessGone(incarnation=incarnation, reason=reason)
        self._events.put_nowait(pb.SupervisorEvent(query_gone=gone))

    async def _end_query(self, reason: str) -> None:
        """Asks first, so that Spark's checkpoint is left whole, and then kills what is left."""
        if self._query is None or self._query_ended is None:
            return
        log.info("ending the query process", reason=reason)
        session = self._query.process.pid
        _signal(session, signal.SIGTERM)
        ended = asyncio.shield(self._query_ended)
        await asyncio.wait([ended], timeout=QUERY_STOP_SECONDS)
        for pid in members(self._home, session) if not ended.done() else ():
            _signal(pid, signal.SIGKILL)
        await ended


def _said(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
