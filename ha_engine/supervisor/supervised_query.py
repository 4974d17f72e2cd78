"""Start the query process, watch it until it is ready, end it and reap it.

The node process decides whether a query process runs. This module imports as little as possible,
because it is a part of the supervisor.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ha_engine.errors import QueryProcessFailed
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.start_report import ENVIRONMENT as REPORT_FD
from ha_engine.query.start_report import READY
from ha_engine.supervisor.plain_log import PlainLog
from ha_engine.supervisor.start_watch import Patience, StartWatch
from ha_engine.system.process_group import MARKER, effort, kill_all, kill_session, members

log = PlainLog("ha_engine.supervisor")

QUERY_STOP_SECONDS = 4.0
LAST_WORDS_SECONDS = 1.0
FIRST_STEP = "starting Python"
PROGRAM = (sys.executable, "-m", "ha_engine.query.main")
REPORT_BYTES_MAX = 1 << 20
_ITS_OWN_FAULT = (
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
)
"""Signals that a process causes itself; any other one comes from outside."""


Message = dict[str, Any]


@dataclass
class Query:
    """One living query process.

    ``reason`` and ``by_host`` describe the end of the process, once known.
    """

    process: asyncio.subprocess.Process
    incarnation: str
    watch: StartWatch | None
    step: str
    stepped_at: float
    reason: str = ""
    by_host: bool = False
    was_signalled: bool = False

    @property
    def session(self) -> int:
        return self.process.pid

    @property
    def is_called_off(self) -> bool:
        """Whether the supervisor ends the query process before it is ready, which is no error."""
        return self.was_signalled and self.watch is not None


class SupervisedQuery:
    """Manages at most one query process, for the node with the data directory ``home``.

    ``send`` reports the steps of a start, and the end of a query process, to the node process.
    ``program`` is the command of the query process.
    """

    def __init__(
        self, home: str, send: Callable[[Message], None], program: Sequence[str] = PROGRAM
    ) -> None:
        self._home, self._send, self._program = home, send, program
        self._command: list[str] = []
        self._environment: Mapping[str, str] = {}
        self._living: Query | None = None
        self._ended: asyncio.Task[None] | None = None
        self._patience = Patience(0.0)

    def configure(
        self, command: list[str], environment: Mapping[str, str], start_timeout: float
    ) -> None:
        """Set arguments, environment variables and patience for the next starts."""
        self._command, self._environment = command, environment
        self._patience.base_seconds = start_timeout

    @property
    def alive(self) -> Message:
        """The incarnation and pid of the query process; an empty incarnation if none lives."""
        query = self._living
        incarnation, pid = (query.incarnation, query.process.pid) if query else ("", 0)
        return {"incarnation": incarnation, "pid": pid}

    def send_step(self) -> None:
        """Report the query process's current step again, for a node process that started later."""
        if (query := self._living) is not None:
            seconds = time.monotonic() - query.stepped_at
            step = {"incarnation": query.incarnation, "step": query.step, "seconds": seconds}
            self._send({"step": step})

    async def start(self, incarnation: str) -> None:
        await self.end("a new query process replaces the old one")
        reading, writing = os.pipe()
        environment = {**os.environ, **self._environment, MARKER: self._home}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *("--incarnation", incarnation),
                *("--parent", str(ProcessId.of(os.getpid()))),
                *self._command,
                env={**environment, REPORT_FD: str(writing)},
                pass_fds=(writing,),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            reason = f"start failed: {error.strerror}"
            log.error("query process not started", reason=reason)
            self._send_end(incarnation, reason, True)
            return
        finally:
            os.close(writing)
        log.debug("query process started", pid=process.pid, incarnation=incarnation)
        now = time.monotonic()
        watch = StartWatch(self._patience.seconds, FIRST_STEP, now)
        self._living = Query(process, incarnation, watch, FIRST_STEP, now)
        self._ended = asyncio.create_task(self._reap(self._living, reading), name="query reaper")

    async def _reap(self, query: Query, reports: int) -> None:
        """Report the end of the query process to the node, once its session has no process."""
        listening = asyncio.create_task(self._read_reports(query, reports), name="query reports")
        watching = asyncio.create_task(self._watch_start(query), name="start watch")
        code = await query.process.wait()
        watching.cancel()
        while not await self._session_is_empty(query.session):
            log.error("processes of the query process survived SIGKILL, retrying")
        await asyncio.wait([listening], timeout=LAST_WORDS_SECONDS)
        _stop_listening(listening)
        self._living = None
        if not query.reason:
            from_outside = code < 0 and -code not in _ITS_OWN_FAULT
            query.by_host = from_outside and not query.was_signalled
        reason = query.reason or how_it_ended(code)
        (log.debug if query.is_called_off else log.info)("query process ended", reason=reason)
        self._send_end(query.incarnation, reason, query.by_host)

    async def _read_reports(self, query: Query, reports: int) -> None:
        """Read the query process's reports of its start and its end."""
        reader = asyncio.StreamReader(limit=REPORT_BYTES_MAX)
        with os.fdopen(reports, "rb") as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            try:
                while line := await reader.readline():
                    self._note(query, json.loads(line))
            finally:
                transport.close()

    def _note(self, query: Query, report: Message) -> None:
        match report:
            case {"step": str(step)}:
                query.step, query.stepped_at = step, time.monotonic()
                if step == READY and query.watch is not None:
                    query.watch = None
                    self._patience.start_succeeded()
                elif query.watch is not None:
                    query.watch.reached(step, query.stepped_at)
                self.send_step()
            case {"end": str(reason)} if not query.reason:
                query.reason, query.by_host = reason, bool(report.get("by_host"))

    async def _watch_start(self, query: Query) -> None:
        while (watch := query.watch) is not None:
            await asyncio.sleep(watch.pause_seconds)
            done = await asyncio.to_thread(effort, self._home, query.session)
            if query.watch is watch and watch.is_stuck(done, time.monotonic()):
                self._patience.start_ended()
                query.reason, query.by_host = watch.reason(self._patience.seconds), True
                log.error("ending the query process", reason=query.reason)
                kill_all(members(self._home, query.session))
                return

    async def _session_is_empty(self, session: int) -> bool:
        try:
            await asyncio.to_thread(kill_session, self._home, session)
        except QueryProcessFailed:
            return False
        return True

    def _send_end(self, incarnation: str, reason: str, by_host: bool) -> None:
        gone = {"incarnation": incarnation, "reason": reason, "by_host": by_host}
        self._send({"gone": gone})

    async def end(self, reason: str) -> None:
        """End the query process by SIGTERM, so that its checkpoints are complete.

        After QUERY_STOP_SECONDS, kill the processes that are left.
        """
        query, ended = self._living, self._ended
        if query is None or ended is None:
            return
        query.was_signalled = True
        (log.debug if query.is_called_off else log.info)("ending the query process", reason=reason)
        signal_process(query.session, signal.SIGTERM)
        await asyncio.wait([ended], timeout=QUERY_STOP_SECONDS)
        if not ended.done():
            kill_all(members(self._home, query.session))
        await asyncio.shield(ended)


def _stop_listening(listening: asyncio.Task[None]) -> None:
    listening.cancel()
    if listening.done() and not listening.cancelled() and (error := listening.exception()):
        log.error("reports of the query process not readable", reason=str(error))


def how_it_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def signal_process(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
