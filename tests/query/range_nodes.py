"""Nodes that serve ranges of a real journal over real gRPC, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ha_engine.config.execution import ExecutionTls
from ha_engine.journal import Journal
from ha_engine.node.range_server import CALLS_MAX, MESSAGE_BYTES, RangeServer, RangeService
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.system.files import OsFiles
from ha_engine.types import ORIGIN, Events, Extent, History, Position, Record

GROUP = "11111111-2222-3333-4444-555555555555"
TOKEN = "of-the-test"


class CountingFiles(OsFiles):
    """Counts the segment files that the service opens, one for each message."""

    def __init__(self) -> None:
        self.reads = 0

    def reader(self, path: Path) -> io.FileIO:
        self.reads += 1
        return super().reader(path)


@dataclass
class Known:
    """What a core would know of ``journal`` if the journal ended at sequence ``through``.

    ``questions`` counts the calls that passed so far.
    """

    journal: Journal
    through: int
    group_id: str | None = GROUP
    questions: int = 0

    def has(self, position: Position) -> bool:
        self.questions += 1
        history = History(ORIGIN, self.journal.epochs)
        return position.sequence <= self.through and history.has(position)

    def lacks_records_from(self, first: int) -> bool:
        return first < self.journal.first

    def locate(self, first: int, last: int) -> list[Extent]:
        return self.journal.locate(first, last)


class Loop:
    """An event loop in a thread, for servers of nodes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class RangeNode:
    """One node. A restart listens on the same port."""

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        records: Sequence[Record] = (),
        *,
        segment_size: int = 1 << 20,
        message_bytes: int = MESSAGE_BYTES,
        calls_max: int = CALLS_MAX,
        tls: ExecutionTls | None = None,
    ) -> None:
        self._loop, self._tls = loop, tls or ExecutionTls()
        self._message_bytes, self._calls_max = message_bytes, calls_max
        self.files = CountingFiles()
        self.journal = Journal.open(directory, group="test", segment_size=segment_size)
        self.journal.append(records)
        self.journal.sync()
        self.known = Known(self.journal, self.journal.last.sequence)
        self.listen = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self.service = RangeService(
            self.known,
            TOKEN,
            calls_max=self._calls_max,
            message_bytes=self._message_bytes,
            files=self.files,
        )
        self._server = RangeServer(self.service, self.listen, self._tls)
        self._loop.run(self._server.start())
        self.listen = self._server.address

    def stop(self) -> None:
        self._loop.run(self._server.stop())

    def close(self) -> None:
        self.stop()
        self.journal.close()


def endpoints(
    *nodes: RangeNode | str, token: str = TOKEN, ca: bytes | None = None, last_epoch: int = 1
) -> Endpoints:
    addresses = tuple(one if isinstance(one, str) else one.listen for one in nodes)
    return Endpoints(addresses, token, ca, GROUP, last_epoch)


def event(sequence: int, *, size: int = 100, stream: str = "flights", epoch: int = 1) -> Record:
    """Return an events record with random bytes, made faster than those of samples.py."""
    body = Events(stream, 3, 1_700_000_000_000_000 + sequence)
    return Record(Position(epoch, sequence), max(0, sequence - 2), body, os.urandom(size))
