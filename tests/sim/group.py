"""Two or three nodes, one database, a network, sinks and producers, all from one seed."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import ha_engine.core
from tests.core.surroundings import Surroundings
from tests.sim.agenda import Agenda
from tests.sim.archive import Archive
from tests.sim.database import Database
from tests.sim.facts import Facts
from tests.sim.network import Network
from tests.sim.node import TIMING, SimNode
from tests.sim.producers import Producers
from tests.sim.pulling import Pulling, Way
from tests.sim.variants import Variant
from tests.sim.watching import Watching

THREE_NODES = 0.25
SHARED_STORAGE = 0.6
DRIFT_MAX = TIMING.margin / TIMING.ttl / 4


class Group:
    """The parts that faults and judges use. ``transcript`` holds (true time, node, event).

    ``variant``: further faults. ``off``: the nodes that an operator has switched off, who forces a
    failover until ``forces_until``.
    ``pulls``: there is a source besides the producers, read in that way.
    """

    def __init__(
        self,
        seed: int,
        engine: Any = ha_engine.core,
        nodes: int | None = None,
        *,
        variant: Variant = Variant.PLAIN,
        pulls: Way | None = None,
    ) -> None:
        self.variant, self.off, self.forces_until = variant, set[str](), 0.0
        self.seed, self.random = seed, Random(seed)
        self.agenda, self.around = Agenda(), Surroundings()
        self.transcript: list[tuple[float, str, object]] = []
        self.counters: Counter[str] = Counter()
        self.facts = Facts(self)
        self.network, self.database = Network(self), Database(self)
        self.archive = Archive(self)
        self.sinks_away: set[str] = set()
        self.sink_slow, self.batch_max = 0.0, 0.4
        # The queries whose batches begin and do not end.
        self.unfinished: set[str] = set()
        self.restart_within = 3.0
        self.wakes_late = 0.005
        self.backup = "c" if variant is Variant.BACKUP else None
        size = 3 if self.backup else nodes
        size = size or (3 if self.random.random() < THREE_NODES else 2)
        self.names = "abc"[:size]
        # Whether all nodes can read each other's checkpoints, as on a cluster.
        self.shares_storage = variant is Variant.WARM and self.random.random() < SHARED_STORAGE
        self.nodes = {name: self._node(name, engine) for name in self.names}
        self.producers = Producers(self)
        self.pulling = Pulling(self, pulls) if pulls else None
        self.watching = Watching(self)
        self.network.join(sorted(self.nodes))

    def _node(self, name: str, engine: Any) -> SimNode:
        rate = 1 + self.random.uniform(-DRIFT_MAX, DRIFT_MAX)
        return SimNode(self, name, rate, self.random.uniform(0, 1000), engine)

    @property
    def now(self) -> float:
        return self.agenda.now

    def count(self, what: str, times: int = 1) -> None:
        self.counters[what] += times

    def tell(self, who: str, what: object) -> None:
        self.transcript.append((self.now, who, what))

    def start(self) -> None:
        for node in self.nodes.values():
            self.agenda.after(self.random.uniform(0, 1), node.start)

    def restart(self, node: SimNode) -> None:
        """Restart a node, as its supervisor or as a person who switches the host on."""
        delay = self.random.uniform(0.1, self.restart_within)
        self.agenda.after(delay, lambda: self._start(node))

    def _start(self, node: SimNode) -> None:
        if not node.alive and node.node not in self.off:
            node.start()

    # -- the state of the whole --------------------------------------------------------------------

    @property
    def living(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.alive]

    def holder(self) -> SimNode | None:
        row = self.around.table.row
        if row is None or row.holder is None:
            return None
        node = self.nodes[row.holder.node]
        return node if node.alive and node.me == row.holder else None
