"""The supervisor keeps the node process and the query process alive, each in its own session.

The supervisor decides little and imports as little as possible, because it lives as long as the
node. The node process reads and checks the config, and sends the supervisor its settings over a
socket. The node process also sends requests to start or stop a query process.

A query process counts as ended only when no process of its session is left (RULES.md#r20). When a
node process has failed, the supervisor reaps it and releases its lease at once. The supervisor has
no state that a restart would lose.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ha_engine.errors import EngineError, sentence_of
from ha_engine.supervisor.plain_log import PlainLog, configure
from ha_engine.supervisor.supervised_query import SupervisedQuery, how_it_ended, signal_process
from ha_engine.system.file_lock import (
    SUPERVISOR_LOCK,
    USERS_LOCK,
    lock_directory,
    share_directory,
)
from ha_engine.system.process_group import kill_session
from ha_engine.system.systemd import ServiceManager, take

log = PlainLog("ha_engine.supervisor")

STOP_SECONDS = 20.0
LAST_WORDS_SECONDS = 1.0
RELEASE_SECONDS_MAX = 10.0
BACKOFF_SECONDS_MAX = 10.0
SETTLED_SECONDS = 30.0
"""A node process that lived so long restarts at once."""
WRONG_USAGE = 2
"""The exit code of a node process that a restart would not help."""
MESSAGE_BYTES_MAX = 1 << 20
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the node process sends to the supervisor.

    ``query`` has the arguments of the query process, except its incarnation and parent. Its
    ``query_environment`` has secrets, which other users could read in the arguments.
    ``starts_query`` is False for the backup, which runs no query process until it is needed.
    ``embedded_dir`` is the directory of a database that this node runs itself.
    """

    node: str
    data_dir: str
    query: list[str]
    query_environment: Mapping[str, str]
    starts_query: bool
    start_timeout: float
    log: Mapping[str, Any]
    embedded_dir: str | None


@dataclass
class Node:
    """One living node process. ``link`` is None until the process has sent its settings."""

    process: asyncio.subprocess.Process
    started_at: float
    served: asyncio.Event = field(default_factory=asyncio.Event)
    link: asyncio.StreamWriter | None = None


class Supervisor:
    """Runs one node until a signal stops it, or a restart of the node process would not help."""

    def __init__(self, node_arguments: list[str], service: Mapping[str, str]) -> None:
        """``service`` has the service manager's environment variables for the node process."""
        self._arguments, self._service = node_arguments, service
        self._settings: Settings | None = None
        self._database: Mapping[str, Any] = {}
        """The settings with which ``lease_release`` reaches the lease row."""
        self._node: Node | None = None
        self._query: SupervisedQuery | None = None
        """None until the settings are known."""
        self._is_first = True
        self._locks: list[int] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._stopping, self._reload_asked = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    def reload(self) -> None:
        self._reload_asked.set()

    async def run(self) -> int:
        """Run the node; return the exit code. Raises DataDirectoryLocked, QueryProcessFailed."""
        try:
            return max(await self._keep_node_running(), 0)
        finally:
            if self._query is not None:
                await self._query.end("the node has stopped")
            if self._releases:
                await asyncio.wait(self._releases, timeout=RELEASE_SECONDS_MAX)
            await self._leave_database()

    # -- node process ------------------------------------------------------------------------------

    async def _keep_node_running(self) -> int:
        """Restart the node process until a restart would not help; return its last exit code."""
        failures = 0
        while True:
            code, lived, served = await self._run_node()
            of_no_use = code in (0, WRONG_USAGE) or (not served and code > 0)
            if self._stopping.is_set() or of_no_use:
                return code
            failures = 1 if lived > SETTLED_SECONDS else failures + 1
            doubled = 0.5 * 2.0 ** min(failures, 10)  # a float overflows at 2.0 ** 1024
            wait = 0.0 if failures == 1 else min(BACKOFF_SECONDS_MAX, doubled)
            log.warning("node process ended", code=code, restart_in_seconds=wait)
            if await self._stopped_within(wait):
                return code

    async def _run_node(self) -> tuple[int, float, bool]:
        """Run one node process.

        Return the exit code, the lifetime in seconds, and whether the node process ever served.
        """
        process_id = str(uuid.uuid4())
        node, reader, writer = await self._spawn_node(process_id)
        ended = asyncio.create_task(node.process.wait(), name="node")
        link = asyncio.create_task(self._attend_node(node, reader, writer), name="node link")
        tasks = (
            link,
            asyncio.create_task(self._stop_when_asked(node), name="stopper"),
            asyncio.create_task(ServiceManager(self._service).bridge(node.served), name="bridge"),
            asyncio.create_task(self._pass_reloads_on(node), name="reloads"),
        )
        try:
            await asyncio.wait((ended, link), return_when=asyncio.FIRST_COMPLETED)
            if link.done() and link.exception() is not None:
                node.process.kill()
            code = await ended
        finally:
            self._node = None
            await self._settle(link)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()
        if code != 0 and node.served.is_set():
            self._release(process_id)
        if not link.cancelled() and (error := link.exception()) is not None:
            raise error
        return code, time.monotonic() - node.started_at, node.served.is_set()

    async def _settle(self, link: asyncio.Task[None]) -> None:
        """Process the last messages of the node process, until its end of the socket is closed."""
        await asyncio.wait([link], timeout=LAST_WORDS_SECONDS)

    async def _spawn_node(
        self, process_id: str
    ) -> tuple[Node, asyncio.StreamReader, asyncio.StreamWriter]:
        ours, its = socket.socketpair()
        with its:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "ha_engine.node"),
                *self._arguments,
                *("--process", process_id),
                *("--link", str(its.fileno())),
                *("--parent", str(os.getpid())),
                env={**os.environ, **self._service},
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        log.debug("node process started", pid=process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MESSAGE_BYTES_MAX)
        self._node = Node(process, time.monotonic())
        return self._node, reader, writer

    async def _stop_when_asked(self, node: Node) -> None:
        await self._stopping.wait()
        node.process.terminate()
        await asyncio.sleep(STOP_SECONDS)
        log.error("node process did not stop in time; killing it")
        node.process.kill()

    async def _pass_reloads_on(self, node: Node) -> None:
        """Forward SIGHUP to the node process once it serves.

        SIGHUP would end a node process that does not serve yet.
        """
        while True:
            await self._reload_asked.wait()
            await node.served.wait()
            self._reload_asked.clear()
            signal_process(node.process.pid, signal.SIGHUP)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # -- the lease of a dead node process ----------------------------------------------------------

    def _release(self, process_id: str) -> None:
        if self._settings is not None:
            work = self._run_release(process_id, self._settings)
            task = asyncio.create_task(work, name="release")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _run_release(self, process_id: str, settings: Settings) -> None:
        """Release the lease in a separate process, since the supervisor has no database client."""
        releasing = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ha_engine.node.lease_release"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        wanted = {
            **self._database,
            "node": settings.node,
            "data_dir": settings.data_dir,
            "process": process_id,
        }
        out, _ = await releasing.communicate(json.dumps(wanted).encode())
        if releasing.returncode != 0:
            reason = out.decode(errors="replace").strip() or how_it_ended(releasing.returncode or 0)
            log.warning("lease not released; it expires after its ttl", reason=reason)

    # -- link to the node process ------------------------------------------------------------------

    async def _attend_node(
        self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                await self._obey(node, writer, json.loads(line))

    async def _obey(self, node: Node, writer: asyncio.StreamWriter, message: Message) -> None:
        match message:
            case {"settings": settings}:
                query = await self._take(Settings(**settings))
                node.link = writer
                self._send({"alive": query.alive})
                query.send_step()
            case {"database": settings}:
                self._database = settings
            case {"log": settings}:
                self._log_as(settings)
            case {"served": _}:
                node.served.set()
            case {"start": {"incarnation": str(incarnation)}} if self._query is not None:
                await self._query.start(incarnation)
            case {"stop": {"incarnation": str(incarnation), "reason": str(reason)}}:
                if self._query is not None and self._query.alive["incarnation"] == incarnation:
                    await self._query.end(reason)

    async def _take(self, settings: Settings) -> SupervisedQuery:
        """Apply the settings of a node process.

        After the settings of the first node process, start the query process at once, unless this
        node is the backup.

        The query process starts without a request, because Spark takes longer to start than the
        node process. A later node process adopts the running query process.
        """
        self._settings = settings
        self._log_as(settings.log)
        query = self._query
        if query is None:
            self._locks.append(lock_directory(Path(settings.data_dir), SUPERVISOR_LOCK))
            self._join_database(settings)
            await asyncio.to_thread(kill_session, settings.data_dir, None)
            query = self._query = SupervisedQuery(settings.data_dir, self._send)
        query.configure(settings.query, settings.query_environment, settings.start_timeout)
        if settings.starts_query and self._is_first and not self._stopping.is_set():
            self._is_first = False
            await query.start(str(uuid.uuid4()))
        return query

    def _log_as(self, settings: Mapping[str, Any]) -> None:
        assert self._settings is not None
        configure(node=self._settings.node, process="supervisor", **settings)

    def _send(self, message: Message) -> None:
        """Send ``message`` to the node process, unless the message ``alive`` is still to come.

        The message ``alive`` will contain what an earlier message would say.
        """
        if self._node is not None and self._node.link is not None:
            self._node.link.write(json.dumps(message).encode() + b"\n")

    # -- the embedded database ---------------------------------------------------------------------

    def _join_database(self, settings: Settings) -> None:
        """Share the lock of the embedded database, so that no other node stops the server."""
        if settings.embedded_dir is not None:
            self._locks.append(share_directory(Path(settings.embedded_dir), USERS_LOCK))

    async def _leave_database(self) -> None:
        for lock in self._locks:
            os.close(lock)
        directory = self._settings.embedded_dir if self._settings else None
        if directory is not None:
            command = (sys.executable, "-m", "ha_engine.postgres.embedded", directory)
            leaving = await asyncio.create_subprocess_exec(*command, start_new_session=True)
            await leaving.wait()


async def _until_stopped(supervisor: Supervisor) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    return await supervisor.run()


def run(config: str | None, *, debug: bool = False) -> int:
    """Run one node until a signal stops it, and return the exit code. Prints an error on stderr."""
    # NumPy, which Arrow imports in every process, would start one BLAS thread for each core. The
    # spinning BLAS threads would take the cores that Java needs at its start.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = [*(("--config", config) if config else ()), *(("--debug",) if debug else ())]
    service = take(os.environ)
    try:
        return asyncio.run(_until_stopped(Supervisor(arguments, service)))
    except EngineError as error:
        if debug:
            raise
        print(f"ha-engine: {sentence_of(error)}", file=sys.stderr)  # noqa: T201
        return error.exit_code
