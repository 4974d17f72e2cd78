"""Links between nodes: each pair has at most one, with a number for each of its lives.

Within a life messages arrive in order; a break loses the messages in flight, and both ends learn of
it. An *unreliable* network drops, doubles and keeps messages for a later life, against the
guarantees of the sync stage: safety must hold even then. A node may wait long for a dropped
message, so an unreliable life of a link ends when everything is healed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.core import messages as say

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

DIAL_EVERY = 0.4


@dataclass
class Link:
    ends: tuple[str, str]
    life: int = 0
    up: bool = False
    # Directions in which no message passes, as (from, to).
    blocked: set[tuple[str, str]] = field(default_factory=set)
    # A message was lost in this life, so no message after it may arrive (TCP).
    torn: set[tuple[str, str]] = field(default_factory=set)
    dropped: bool = False
    arrives_at: dict[tuple[str, str], float] = field(default_factory=dict)
    dial_at: float = 0.0


class Network:
    def __init__(self, group: Group) -> None:
        self.group, self.random = group, group.random
        self.delay_max = 0.02
        self.drops = self.doubles = self.keeps = 0.0
        self.links: dict[frozenset[str], Link] = {}
        self._kept: list[tuple[str, str, say.Message]] = []

    def join(self, names: list[str]) -> None:
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                self.links[frozenset((one, other))] = Link((one, other))
        self._dial()

    def link(self, one: str, other: str) -> Link:
        return self.links[frozenset((one, other))]

    # -- lives of links ----------------------------------------------------------------------------

    def _dial(self) -> None:
        for link in self.links.values():
            nodes = [self.group.nodes[name] for name in link.ends]
            able = all(node.alive and not node.paused for node in nodes)
            if able and not link.up and not link.blocked and self.group.now >= link.dial_at:
                self._connect(link, nodes)
        self.group.agenda.after(DIAL_EVERY, self._dial)

    def _connect(self, link: Link, nodes: list[SimNode]) -> None:
        link.life, link.up = link.life + 1, True
        link.torn.clear()
        link.dropped = False
        for node, peer in (nodes, nodes[::-1]):
            delay = self.random.uniform(0, self.delay_max)
            link.arrives_at[(peer.node, node.node)] = self.group.now + delay
            node.soon(delay, on.PeerConnected(peer.node, peer.archive_of_process))
        self._deliver_kept_messages(link)

    def cut(self, link: Link, notice_within: float = 0.3) -> None:
        """End this life of the link; both ends learn of it, each after its own delay."""
        if not link.up:
            return
        link.up, told_at = False, 0.0
        for one, other in (link.ends, link.ends[::-1]):
            delay = self.random.uniform(0, notice_within)
            told_at = max(told_at, delay)
            node = self.group.nodes[one]
            if node.alive:
                node.soon(delay, on.PeerLost(other, "the link broke"))
        link.dial_at = self.group.now + told_at + 0.001

    def died(self, name: str) -> None:
        for link in self.links.values():
            if name in link.ends:
                self.cut(link, 1.0 if self.random.random() < 0.3 else 0.05)

    def notice(self, link: Link) -> None:
        """Let an end without messages for a while give the life up."""
        life = link.life

        def give_up() -> None:
            if link.life == life and (link.torn or any(self._deaf(name) for name in link.ends)):
                self.cut(link)

        self.group.agenda.after(self.random.uniform(0.6, 2.5), give_up)

    def falls_silent(self, name: str) -> None:
        for link in self.links.values():
            if name in link.ends and link.up:
                self.notice(link)

    def _deaf(self, name: str) -> bool:
        return self.group.nodes[name].paused

    def block(self, one: str, other: str) -> None:
        link = self.link(one, other)
        link.blocked.add((one, other))
        link.torn.add((one, other))
        self.notice(link)

    def unblock(self) -> None:
        for link in self.links.values():
            link.blocked.clear()
            if link.torn or link.dropped:
                self.cut(link)

    # -- messages ----------------------------------------------------------------------------------

    def send(self, source: SimNode, target: str, message: say.Message) -> None:
        link, way = self.link(source.node, target), (source.node, target)
        if not link.up or way in link.torn:
            return
        if self.random.random() < self.drops:
            link.dropped = True
            return
        delay = self.random.uniform(0.0005, self.delay_max)
        arrives = max(link.arrives_at.get(way, 0.0), self.group.now + delay)
        link.arrives_at[way] = arrives
        self._carry(link, way, message, arrives)
        if self.random.random() < self.doubles:
            self._carry(link, way, message, arrives + self.random.uniform(0, 1.0))
        if self.random.random() < self.keeps:
            self._kept.append((source.node, target, message))

    def _carry(
        self, link: Link, way: tuple[str, str], message: say.Message, arrives: float
    ) -> None:
        life = link.life

        def arrive() -> None:
            if link.up and link.life == life and way not in link.torn:
                self.group.nodes[way[1]].now_or_later(on.PeerMessage(way[0], message))

        self.group.agenda.at(arrives, arrive)

    def _deliver_kept_messages(self, link: Link) -> None:
        """Deliver late packets of an earlier life, perhaps of an earlier epoch."""
        kept, self._kept = self._kept, []
        for one, other, message in kept:
            if frozenset((one, other)) != frozenset(link.ends):
                self._kept.append((one, other, message))
                continue
            self._carry(link, (one, other), message, self.group.now + self.random.uniform(0, 2))
            self.group.count("late packets")
