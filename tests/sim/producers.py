"""Producers: one request at a time, repeated until it is acked, also on another node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.types import Events, Submission
from tests.core.truth import require

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

Request = tuple[str, int]
RETRY_AFTER = 1.2


@dataclass
class Producer:
    name: str
    stream: str
    sequence: int = 0
    acked: int = 0
    rows: int = 0


class Producers:
    def __init__(self, group: Group) -> None:
        self.group, self.random = group, group.random
        self.all = [Producer("p1", "flights"), Producer("p2", "weather"), Producer("p3", "flights")]
        self.sending, self.loses_acks = True, 0.05
        # Requests that wait for the commit of a sequence, by node.
        self._waiting: dict[str, list[tuple[int, Request]]] = {}
        for one in self.all:
            group.agenda.after(self.random.uniform(0, 2), lambda one=one: self._next(one))

    @property
    def all_acked(self) -> bool:
        return all(one.acked == one.sequence for one in self.all)

    def _next(self, one: Producer) -> None:
        if not self.sending:
            return
        one.sequence, one.rows = one.sequence + 1, self.random.randint(1, 30)
        self._try(one, one.sequence)

    def _try(self, one: Producer, sequence: int) -> None:
        """Repeat the request until it is acked."""
        if one.acked >= sequence:
            return
        node = self.group.nodes[self.random.choice(sorted(self.group.nodes))]
        if node.alive and (node.receiving or self.random.random() < 0.1):
            node.now_or_run(lambda: self._arrive(node, one, sequence))
            again = RETRY_AFTER
        else:
            again = 0.15
        self.group.agenda.after(again, lambda: self._try(one, sequence))

    def _arrive(self, node: SimNode, one: Producer, sequence: int) -> None:
        """Act as the gate: answer a duplicate when its original is committed (RULES.md#r27)."""
        if not node.receiving or one.sequence != sequence:
            return
        request = (one.name, sequence)
        position = node.known.get(request)
        if position is None:
            body = Events(one.stream, one.rows, 0, (Submission(*request, "", one.rows),))
            position = len(node.disk.records) + 1
            self._wait(node, position, request)
            node.feed(on.EventsOffered(body, b""))
            return
        self.group.count("duplicates answered")
        if position <= node.core.journal.committed:
            self._ack(request)
        else:
            self._wait(node, position, request)

    def _wait(self, node: SimNode, position: int, request: Request) -> None:
        self._waiting.setdefault(node.node + node.me.process, []).append((position, request))

    def refuse(self, node: SimNode) -> None:
        """Send the requests that wait for a former holder to another node."""
        self._waiting.pop(node.node + node.me.process, None)

    def committed(self, node: SimNode, sequence: int) -> None:
        waiting = self._waiting.pop(node.node + node.me.process, [])
        left = [one for one in waiting if one[0] > sequence]
        if left:
            self._waiting[node.node + node.me.process] = left
        for position, request in waiting:
            if position <= sequence:
                self._ack(request)

    def _ack(self, request: Request) -> None:
        """RULES.md#i3: ack only committed requests; the ack may get lost."""
        require(request in self.group.facts.submitted, "I3", f"{request} is acked, not committed")
        self.group.count("acks")
        one = next(p for p in self.all if p.name == request[0])
        if self.random.random() < self.loses_acks or one.acked >= request[1]:
            return
        one.acked = request[1]
        self.group.agenda.after(self.random.uniform(0.05, 2.0), lambda: self._next(one))
