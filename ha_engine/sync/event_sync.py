"""The public class of the sync stage: links to all peers, messages of the cores, streams of
records.

The sync stage only moves bytes. The core decides which node is active, which records a peer gets,
and which members are in sync.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.core import inputs as on
from ha_engine.core.messages import Ack, Message
from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.sync.codec import MalformedFrame, to_message, to_sync_frame
from ha_engine.sync.dialling import Dialler, exchange_hellos
from ha_engine.sync.grpc_transport import GrpcTransport
from ha_engine.sync.hello import Hello, from_sync_frame, objection
from ha_engine.sync.hello import to_sync_frame as hello_frame
from ha_engine.sync.link import Link, Traffic
from ha_engine.sync.refusals import Refusals
from ha_engine.sync.report import REPORT_EVERY_SECONDS, Report
from ha_engine.sync.report import from_sync_frame as to_report
from ha_engine.sync.report import to_sync_frame as report_frame
from ha_engine.sync.stream import RecordStream
from ha_engine.sync.tail import Tail, Trimmed, WrittenRecords
from ha_engine.sync.transport import Refused, Transport
from ha_engine.sync.wire import Wire, WireBroken
from ha_engine.types import Position, Record
from ha_engine.v1 import sync_pb2 as pb
from ha_engine.web.closed import Closed

log = structlog.get_logger(__name__)

STRANGERS_MAX = 16
"""Callers that have not yet exchanged Hellos. A further caller takes the place of the one that
called first, since a peer sends its Hello at once."""


class Owner(Protocol):
    """The part of the node that the sync stage uses. The sync stage makes every call of its owner
    on the event loop."""

    def hello(self) -> Hello:
        """Return this node's present identity."""

    def report(self) -> Report:
        """Return this node's present status, for people to read."""

    def committed(self) -> int:
        """Return the highest committed sequence."""

    def handle(self, event: on.Input) -> None:
        """Handle PeerConnected, PeerMessage or PeerLost, which arrive in order for each peer."""

    async def wait_for_space(self) -> None:
        """Return when the journal's writer can take more records."""

    def fail(self, error: BaseException) -> None:
        """Handle ``error``, after which the sync stage cannot continue."""


class EventSync:
    """The sync stage of a node process. Without peers an EventSync opens no links, and its calls
    have no effect.

    ``transport`` is gRPC by default. ``jitter`` chooses each pause between two attempts to dial.
    ``closed`` counts the callers that do not introduce themselves.
    """

    def __init__(
        self,
        config: EventSyncConfig,
        journal: WrittenRecords,
        owner: Owner,
        closed: Counter[str],
        *,
        transport: Transport | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._config, self._journal, self._owner = config, journal, owner
        self._transport, self._jitter = transport or GrpcTransport(config), jitter
        self._closed, self._strangers = closed, dict[asyncio.Timeout, None]()
        self._tail = Tail(journal)
        self._links: dict[str, Link] = {}
        self._streams: dict[str, RecordStream] = {}
        self._traffic = {peer: Traffic() for peer in config.peers}
        self._refusals = Refusals(asyncio.get_running_loop().time)
        self._unreachable: dict[str, str] = {}
        # For each peer with a link, the time of its last report, and the report.
        self._reports: dict[str, tuple[float, Report]] = {}
        self._hellos: dict[str, Hello] = {}
        # For each peer without a link, the time of its loss, or of the start of this process.
        self._silent_since = dict.fromkeys(config.peers, asyncio.get_running_loop().time())
        self._urls: dict[str, str] = {}
        # In the order of their starts, so that a history can be repeated.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopping = False
        self.port = 0

    # -- start and stop ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for peers, and dial each peer with a greater id. Raises ConfigError,
        AddressInUse."""
        if not self._config.peers:
            return
        self.port = await self._transport.listen(self._serve)
        self._spawn(self._report_on(), "reports")
        ours = self._owner.hello().node
        for peer in self._config.peers:
            if ours < peer:
                refused = partial(self._refusals.note, peer)
                unreachable = partial(self._note_unreachable, peer)
                reports = self._run_link, refused, unreachable
                dialler = Dialler(peer, self._transport, *reports, self._jitter)
                self._spawn(dialler.run(), f"dial {peer}")

    async def stop(self) -> None:
        """End all links. The core gets no PeerLost for links that this method ends."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.end("this node stops")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.stop()

    # -- requests of the core ----------------------------------------------------------------------

    def send(self, peer: str, message: Message) -> None:
        """Send ``message`` to ``peer``; drop the message when there is no link."""
        if link := self._links.get(peer):
            link.send(to_sync_frame(message))

    def stream(self, peer: str, epoch: int, after: Position) -> None:
        """Send ``peer`` every record after ``after``, then each record as it is appended."""
        self._stop_stream(peer)
        if link := self._links.get(peer):
            stream = RecordStream(
                link,
                epoch,
                after,
                self._tail,
                self._journal,
                self._owner.committed,
                self._config.max_in_flight,
            )
            self._streams[peer] = stream
            stream.task.add_done_callback(partial(self._stream_over, link))

    def stop_streams(self) -> None:
        for peer in list(self._streams):
            self._stop_stream(peer)

    def appended(self, records: Sequence[Record]) -> None:
        """Send ``records``, which the journal's writer has just queued, on all streams.

        The caller must pass records to the writer and to this method in the same turn of the event
        loop.
        """
        self._tail.append(records, streaming=bool(self._streams))
        for stream in self._streams.values():
            stream.appended()

    def introduce(self) -> None:
        """Send a Hello again on every link, because the group now has an id."""
        for link in self._links.values():
            link.send(hello_frame(self._owner.hello()))

    # -- status ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of the peers in the config."""
        return list(self._config.peers)

    def refusals(self) -> dict[str, str]:
        """The reason for each refused node, until some seconds after its last attempt.

        The key of a peer that this node dialled is the peer's name in the config. The key of any
        other node is the name in that node's Hello.
        """
        return self._refusals.current()

    def unreachable(self) -> dict[str, str]:
        """The reason for each peer that this node cannot reach at present."""
        return dict(self._unreachable)

    def reports(self) -> dict[str, tuple[float, Report]]:
        """For each connected peer, the age of its last report in seconds, and the report."""
        now = asyncio.get_running_loop().time()
        return {peer: (now - came, report) for peer, (came, report) in self._reports.items()}

    def hellos(self) -> dict[str, Hello]:
        """The Hello of this node and of each connected peer."""
        ours = self._owner.hello()
        return {**self._hellos, ours.node: ours}

    def silent_seconds(self) -> dict[str, float]:
        """For each peer without a link, the seconds since its loss, or since this process
        started."""
        now = asyncio.get_running_loop().time()
        return {peer: now - since for peer, since in self._silent_since.items()}

    def process_of(self, peer: str) -> str | None:
        """The process of ``peer`` that has a link, or None without one."""
        link = self._links.get(peer)
        return link.process if link else None

    def urls(self) -> Iterable[str]:
        """The URLs that peers have reported, including peers that are no longer connected."""
        return self._urls.values()

    def traffic(self) -> Mapping[str, Traffic]:
        """Counters by peer."""
        return self._traffic

    def in_flight(self) -> dict[str, int]:
        """For each peer with a stream, the bytes that are sent and not confirmed."""
        return {peer: stream.in_flight for peer, stream in self._streams.items()}

    # -- links -------------------------------------------------------------------------------------

    async def _serve(self, wire: Wire) -> None:
        """Serve a node that dialled this one: a peer with a smaller id, or an unknown node."""
        try:
            await self._run_link(wire, dialled=None)
        except Refused as error:
            self._refusals.note(error.node, error.reason)
        except (WireBroken, MalformedFrame, TimeoutError):
            self._closed[Closed.STRANGER] += 1
        except Exception as error:
            self._owner.fail(error)

    async def _run_link(self, wire: Wire, dialled: str | None) -> None:
        ours = self._owner.hello()
        callers = [peer for peer in self._config.peers if peer < ours.node]
        welcome = callers if dialled is None else [dialled]
        if dialled is None:
            theirs = await self._greet(wire, ours, welcome)
        else:
            theirs = await exchange_hellos(wire, ours, welcome)
        link = Link(theirs.node, theirs.process, wire, self._traffic[theirs.node])
        reason = "the connection is lost"
        try:
            self._opened(link, theirs)
            reason = await link.run(
                lambda frame: self._received(link, frame), self._owner.wait_for_space
            )
        finally:
            self._lost(link, reason)

    async def _greet(self, wire: Wire, ours: Hello, welcome: Sequence[str]) -> Hello:
        """Exchange Hellos with a caller; raises TimeoutError when another takes its place."""
        if len(self._strangers) >= STRANGERS_MAX:
            first = next(iter(self._strangers))
            del self._strangers[first]
            first.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(None) as place:
            self._strangers[place] = None
            try:
                return await exchange_hellos(wire, ours, welcome, self.process_of)
            finally:
                self._strangers.pop(place, None)

    def _opened(self, link: Link, theirs: Hello) -> None:
        peer = link.peer
        former = self._links.get(peer)
        if former and former.process != link.process:
            link.end("another process of the peer has connected meanwhile")
            return
        if former:
            self._lost(former, "a newer link to the peer replaced this one")
        if self._stopping:
            link.end("this node stops")
            return
        self._links[peer], self._hellos[peer] = link, theirs
        self._silent_since.pop(peer, None)
        self._refusals.forget(peer)
        self._unreachable.pop(peer, None)
        self._traffic[peer].connected = True
        self._traffic[peer].links += 1
        log.info("peer connected", peer=peer, process=theirs.process, address=theirs.address)
        self._owner.handle(on.PeerConnected(peer, theirs.archive or None))
        link.send(report_frame(self._owner.report()))

    def _lost(self, link: Link, reason: str) -> None:
        link.end(reason)
        if self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        del self._hellos[link.peer]
        self._silent_since[link.peer] = asyncio.get_running_loop().time()
        self._reports.pop(link.peer, None)
        self._stop_stream(link.peer)
        self._traffic[link.peer].connected = False
        if not self._stopping:
            log.warning("peer lost", peer=link.peer, reason=reason)
            self._owner.handle(on.PeerLost(link.peer, reason))

    def _received(self, link: Link, frame: pb.SyncFrame) -> None:
        if frame.HasField("hello"):
            self._judge_again(link, from_sync_frame(frame.hello))
            return
        if frame.HasField("report"):
            now = asyncio.get_running_loop().time()
            report = to_report(frame.report)
            self._reports[link.peer], self._urls[link.peer] = (now, report), report.url
            return
        message = to_message(frame)
        if isinstance(message, Ack):
            self._confirm(link.peer, message)
        self._owner.handle(on.PeerMessage(link.peer, message))

    def _judge_again(self, link: Link, theirs: Hello) -> None:
        ours = self._owner.hello()
        reason = objection(ours, theirs, welcome=(link.peer,), certified=None)
        if reason is not None:
            self._refusals.note(link.peer, reason)
            link.end(reason)

    # -- streams -----------------------------------------------------------------------------------

    def _confirm(self, peer: str, ack: Ack) -> None:
        stream = self._streams.get(peer)
        if stream is not None and stream.epoch == ack.epoch:
            stream.confirmed(ack.durable)

    def _stop_stream(self, peer: str) -> None:
        if stream := self._streams.pop(peer, None):
            stream.stop()

    def _stream_over(self, link: Link, done: asyncio.Task[None]) -> None:
        if done.cancelled():
            return
        match done.exception():
            case Trimmed() as error:
                link.end(str(error))
            case JournalDamaged() | DiskFailed() as error:
                # This node works without the old record that it cannot read, and a snapshot may
                # soon cover that record.
                log.error("records for the peer cannot be read", peer=link.peer, error=str(error))
                link.end(str(error))
            case BaseException() as error:
                self._owner.fail(error)

    # -- internals ---------------------------------------------------------------------------------

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_SECONDS)
            frame = report_frame(self._owner.report())
            for link in self._links.values():
                link.send(frame)

    def _note_unreachable(self, peer: str, reason: str) -> None:
        if peer not in self._unreachable:
            log.warning("peer unreachable, retrying", peer=peer, reason=reason)
        self._unreachable[peer] = reason

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._owner.fail(error)

        task = asyncio.get_running_loop().create_task(run(), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
