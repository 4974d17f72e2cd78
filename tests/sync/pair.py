"""Nodes for the sync stage's tests: a real journal, a real EventSync, and the least of a core.

``SyncNode`` treats its inputs as the driver and the core do: a follower appends records and acks
those that are durable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ha_engine.config import EventSyncConfig
from ha_engine.core import inputs as on
from ha_engine.core.messages import Ack, Message, Records
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.sync import EventSync, Hello, Report
from ha_engine.types import ORIGIN, Position, Record
from ha_engine.v1.sync_pb2 import CheckApplicationReply, CheckApplicationRequest

EPOCH = 1
ROOM_BYTES = 64 << 20


async def no_check(request: CheckApplicationRequest) -> CheckApplicationReply:
    """Answer no question about an application."""
    raise AssertionError


def hello(node: str, **others: object) -> Hello:
    usual = Hello(
        engine="0.1.0",
        group="test",
        group_id="",
        node=node,
        process=f"process of {node}",
        journal_id=f"journal of {node}",
        application="a" * 32,
        config="c" * 32,
        runtime={"python": "3.11.7", "spark": "4.3.0"},
        address=f"{node}:9893",
    )
    return replace(usual, **others)  # type: ignore[arg-type]


class SyncNode:
    """``inputs`` are the core's inputs; ``acking`` False withholds the acks of this node."""

    def __init__(
        self, directory: Path, config: EventSyncConfig, node: str, /, **said: object
    ) -> None:
        self.node, self.directory = node, directory
        self.journal = Journal.open(directory, group="test", segment_size=1 << 20)
        self.writer = JournalWriter(self.journal, self._durable, self.fail)
        self.said = hello(node, **{"journal_id": self.journal.journal_id, **said})
        self.inputs: list[on.Input] = []
        self.failures: list[BaseException] = []
        self.acking = True
        self.leader: str | None = None
        self.epoch = EPOCH
        self.reason = "a test"
        self.appended = self.journal.last
        self.received = self.asked = 0
        # Cleared: this node's disk has no room, and the link reads nothing.
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = Counter[str]()
        self.sync = EventSync(config, self.journal, self, self.closed)

    async def start(self) -> SyncNode:
        await self.sync.start()
        return self

    async def stop(self) -> None:
        await self.sync.stop()
        await self.writer.close()
        self.journal.close()

    # -- Owner

    def hello(self) -> Hello:
        self.asked += 1
        return self.said

    def report(self) -> Report:
        last = self.appended.sequence
        return Report(
            role="passive",
            reason=self.reason,
            epoch=EPOCH,
            url=f"http://{self.node}:8080",
            journal_id=self.journal.journal_id,
            last=last,
            durable=last,
            committed=self.committed(),
            suspended=False,
            warm=True,
            headroom=True,
            follows=True,
            query_process_connected=True,
        )

    def committed(self) -> int:
        return max(0, self.appended.sequence - 1)

    def handle(self, event: on.Input) -> None:
        self.inputs.append(event)
        match event:
            case on.PeerMessage(peer, Records(epoch, previous, records, _)):
                assert previous == self.appended, f"{previous} came behind {self.appended}"
                self.leader, self.epoch = peer, epoch
                self.received += len(records)
                self.append(records)

    async def wait_for_space(self) -> None:
        await self.gate.wait()
        await self.writer.wait_for_space(ROOM_BYTES)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    # -- work of the core

    def append(self, records: Sequence[Record]) -> None:
        self.writer.append(records)
        self.sync.appended(records)
        if records:
            self.appended = records[-1].position

    def ack(self, durable: int) -> None:
        if self.leader is not None:
            self.send(self.leader, Ack(self.epoch, self.journal.journal_id, durable, True, False))

    def say(self, **others: object) -> None:
        """Change the content of this node's Hello."""
        self.said = replace(self.said, **others)  # type: ignore[arg-type]

    def send(self, peer: str, message: Message) -> None:
        self.sync.send(peer, message)

    def stream(self, peer: str, after: Position = ORIGIN, epoch: int = EPOCH) -> None:
        self.sync.stream(peer, epoch, after)

    def _durable(self, sequence: int) -> None:
        if self.acking:
            self.ack(sequence)

    # -- queries of tests

    def heard(self) -> list[Message]:
        return [event.message for event in self.inputs if isinstance(event, on.PeerMessage)]

    def links(self) -> list[on.Input]:
        return [event for event in self.inputs if isinstance(event, on.PeerConnected | on.PeerLost)]

    def connected(self, peer: str) -> bool:
        return self.sync.traffic()[peer].connected

    def content(self) -> bytes:
        """Return every frame of the journal, concatenated."""
        extents = self.journal.locate(1, self.journal.last.sequence)
        return b"".join(
            Path(one.path).read_bytes()[one.offset : one.offset + one.length] for one in extents
        )


def plain(peers: dict[str, int], port: int = 0, **others: object) -> EventSyncConfig:
    """``peers`` by name with their ports on this host; ``port`` to listen on."""
    return EventSyncConfig.model_validate(
        {
            "listen": f"127.0.0.1:{port}",
            "peers": {name: f"127.0.0.1:{at}" for name, at in peers.items()},
            "insecure": True,
            **others,
        }
    )
