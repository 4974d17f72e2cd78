"""A source that every node pulls while it takes events: rows 1, 2, ... of a stream, one a record.

The journal of a node has the offset of the last row, as in ``receive/offsets``. The node offers a
read row a while later, when it may be a follower, or the holder again. The source has its own
random numbers, so that a seed's history without a source stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.types import Events, Pulled, Record
from tests.core.truth import require

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

SOURCE, STREAM = "drop", "weather"
READ_EVERY, READ_TAKES_MAX = 0.4, 3.0
"""A read may take longer than a failover."""


@dataclass(frozen=True)
class Way:
    """The engine's way, and the mistakes that the judge must find."""

    asks_the_journal: bool = True
    gate_compares: bool = True


class Pulling:
    def __init__(self, group: Group, way: Way) -> None:
        self.group, self.way, self.random = group, way, Random(f"source {group.seed}")
        self.sending = True
        # The last row that each node's process has read.
        self._remembered: dict[str, int] = {}
        for name in group.names:
            group.agenda.after(self.random.uniform(0, 1), lambda name=name: self._turn(name))

    def _turn(self, name: str) -> None:
        node, again = self.group.nodes[name], self.random.uniform(0.5, 1.5) * READ_EVERY
        self.group.agenda.after(again, lambda: self._turn(name))
        if self.sending and node.alive:
            node.now_or_run(lambda: self._read(node))

    def _read(self, node: SimNode) -> None:
        if not node.receiving:
            return
        after = self._reached(node)
        self._remembered[node.node] = after + 1
        takes = self.random.choice((0.0, self.random.uniform(0, READ_TAKES_MAX)))
        node.later(takes, lambda: self._offer(node, after))

    def _reached(self, node: SimNode) -> int:
        if self.way.asks_the_journal:
            return node.pulled
        return self._remembered.get(node.node, node.pulled)

    def _offer(self, node: SimNode, after: int) -> None:
        """Let the gate decide: it is open, and the row follows that of the journal
        (RULES.md#i11)."""
        if not node.receiving:
            return
        if self.way.gate_compares and node.pulled != after:
            self.group.count("rows refused by the gate")
            return
        self.group.count("rows pulled")
        body = Events(STREAM, 1, 0, (), (Pulled(SOURCE, str(after + 1), 1),))
        node.feed(on.EventsOffered(body, b""))


def pulled_by(record: Record) -> int | None:
    """Return the source's offset in a record, or None."""
    body = record.body
    return int(body.pulled[-1].offset) if isinstance(body, Events) and body.pulled else None


def require_each_once(records: list[Record]) -> None:
    """RULES.md#i11 for sources: each row is in the journal once, in its order, with none left
    out."""
    found = [offset for record in records if (offset := pulled_by(record)) is not None]
    require(found == list(range(1, len(found) + 1)), "I11", f"rows of the source: {found}")
