"""An observer of the simulated group, which asks the nodes for published batches.

It decides as the real one does, with ``ha_engine.observer.next_batch``. It has its own random
numbers and only reads, so it changes no history.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ha_engine.observer.next_batch import Gone, NextBatch, Output
from ha_engine.types import SHADOW_SIGN, Role
from tests.core.surroundings import Disk
from tests.core.truth import require
from tests.sim.variants import Variant

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

KEPT_BATCHES = 3
ASKS_EVERY = 0.5
DIES_EVERY = 20.0
"""Both in seconds, in the mean."""
ONE_HISTORY = (Variant.PLAIN, Variant.ROLLED_BACK, Variant.RESCALED)
"""The variants in which no operator gives up records or promotes a shadow. In these, a batch has
one content."""


class Watching:
    """The observer. It does not reach a node with the probability ``deaf``."""

    def __init__(self, group: Group) -> None:
        self.group, self.random = group, Random(f"observer {group.seed}")
        self.deaf = 0.2
        self._last: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        group.agenda.after(self.random.uniform(0, 5), self._turn)

    def lacks(self) -> str | None:
        """Return the reason why the observer has not heard of every published batch, or None."""
        for (query, sink), ledger in self.group.around.ledgers.items():
            if self._last.get(query, 0) < ledger.batch:
                return f"the observer lacks batches of {query} that {sink} has"
        return None

    def _turn(self) -> None:
        self.group.agenda.after(self.random.uniform(0.5, 1.5) * ASKS_EVERY, self._turn)
        if self.random.random() < ASKS_EVERY / DIES_EVERY:
            self._last = dict(self._saved)
        for query in next(iter(self.group.nodes.values())).plans:
            while self._advance(query):
                pass

    def _advance(self, query: str) -> bool:
        last = self._last.get(query)
        search, asked = NextBatch(last), self._ranked()
        for node in asked:
            if found := search.found_in(_answer(node, query, search.after)):
                self._take(query, found)
                return True
        if search.passed is None:
            return False
        passed = range(search.after + 1, search.passed + 1)
        had = [
            node.node for node in asked if node.disk.published.get(query, {}).keys() & set(passed)
        ]
        require(not had, "C2", f"the observer passed batches of {query} that {had} have")
        if last is not None:
            self.group.count("batches missed by the observer", search.passed - last)
        self._last[query] = search.passed
        return True

    def _ranked(self) -> list[SimNode]:
        """Return the nodes that answer, mostly the active first."""
        reached = [
            node
            for node in self.group.living
            if not node.paused and self.random.random() >= self.deaf
        ]
        self.random.shuffle(reached)
        informed = self.random.random() >= self.deaf
        return sorted(reached, key=lambda node: informed and node.truth.role is not Role.ACTIVE)

    def _take(self, query: str, found: Output) -> None:
        require(
            found.number == self._last.get(query, 0) + 1, "C2", f"{query}: {found} is not the next"
        )
        if self.group.variant in ONE_HISTORY:
            truth = _encoded(self.group.around.batches[query][found.number])
            require(found.ipc == truth, "C2", f"the observer got another {found.number} of {query}")
        # A batch on its disk outlives the observer, other than the note of a missed one.
        self._last[query] = self._saved[query] = found.number
        self.group.count("batches observed")


def _answer(node: SimNode, query: str, after: int) -> Output | Gone | None:
    """Answer as the route of a node does."""
    kept = node.disk.published.get(query, {})
    number = min((number for number in kept if number > after), default=None)
    if number is None:
        return None
    if number > after + 1:
        return Gone(number)
    return Output("group", number, len(kept[number]), _encoded(kept[number]))


def _encoded(content: object) -> bytes:
    return repr(content).encode()


def keep_for_observers(disk: Disk, query: str, through: int) -> None:
    """Keep the newest batches that leave the outbox, as ``PublishedBatches`` does."""
    if SHADOW_SIGN in query:
        return
    kept = disk.published.setdefault(query, {})
    for number, content in sorted(disk.outbox.get(query, {}).items()):
        if max(kept, default=0) < number <= through:
            kept[number] = content
    for number in sorted(kept)[:-KEPT_BATCHES]:
        del kept[number]
