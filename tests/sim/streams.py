"""The edge's part of the sync stage: records go to a peer as soon as they are appended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ha_engine.core import messages as say
from ha_engine.types import ORIGIN, Position

if TYPE_CHECKING:
    from tests.sim.node import SimNode

RUN_MAX = 4


@dataclass
class Stream:
    """A stream to one peer, on one life of the link; ``at`` is the last sent sequence."""

    peer: str
    epoch: int
    at: int
    life: int
    runs: bool = False


class Streams:
    def __init__(self, node: SimNode) -> None:
        self.node = node
        self._streams: dict[str, Stream] = {}

    def start(self, peer: str, epoch: int, after: Position) -> None:
        link = self.node.group.network.link(self.node.node, peer)
        self._streams[peer] = Stream(peer, epoch, after.sequence, link.life)
        self.go_on()

    def stop(self) -> None:
        self._streams.clear()

    def go_on(self) -> None:
        for stream in self._streams.values():
            if not stream.runs and stream.at < len(self.node.disk.records):
                stream.runs = True
                self._send_soon(stream)

    def _send_soon(self, stream: Stream) -> None:
        delay = self.node.random.uniform(0, 0.01)
        self.node.later(delay, lambda: self._send(stream))

    def _send(self, stream: Stream) -> None:
        node = self.node
        link = node.group.network.link(node.node, stream.peer)
        if self._streams.get(stream.peer) is not stream:
            return
        if not link.up or link.life != stream.life:
            del self._streams[stream.peer]
            return
        at, records = stream.at, node.disk.records
        if at < node.disk.base.position.sequence:
            del self._streams[
                stream.peer
            ]  # the next record that it needs is trimmed (RULES.md#r29)
            return
        run = tuple(records[at : at + node.random.randint(1, RUN_MAX)])
        previous = records[at - 1].position if at else ORIGIN
        stream.at += len(run)
        message = say.Records(stream.epoch, previous, run, node.core.journal.committed)
        node.group.tell(node.node, message)
        node.group.network.send(node, stream.peer, message)
        stream.runs = stream.at < len(records)
        if stream.runs:
            self._send_soon(stream)
