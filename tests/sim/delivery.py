"""The publisher of one node: calls to sinks that take a while, fail, or land after their deadline.

The publisher checks the authority before it sends a call, and the ledger decides when the call
lands (RULES.md#r17, RULES.md#r24).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from tests.core.surroundings import QuerySink
from tests.core.truth import require

if TYPE_CHECKING:
    from tests.sim.node import SimNode

CALL_SECONDS_MAX = 0.8
AGAIN_AFTER = 0.3


class Delivery:
    """One call at a time to each sink. ``stop`` abandons pending calls, which may still land."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self._busy: dict[QuerySink, object] = {}

    def stop(self) -> None:
        self._busy.clear()

    def restart(self) -> None:
        """Begin calls to idle sinks: publishing has started, or the outbox has more."""
        if self.node.publishing is None:
            self.stop()
            return
        for key in self._keys():
            if key not in self._busy:
                self._call_later(key, 0.001)

    def _keys(self) -> list[QuerySink]:
        return [(name, sink) for name, one in self.node.plans.items() for sink in one.sinks]

    def _call_later(self, key: QuerySink, delay: float) -> None:
        token = self._busy[key] = object()
        self.node.later(delay, lambda: self._call(key, token))

    def _call(self, key: QuerySink, token: object) -> None:
        node, epoch = self.node, self.node.publishing
        if self._busy.get(key) is not token:
            return
        if epoch is None or key in node.fenced:
            del self._busy[key]
            return
        seconds = min(CALL_SECONDS_MAX, node.core.authority_seconds(node.now))
        if seconds <= 0:
            self._call_later(key, AGAIN_AFTER)
            return
        number = node.ledgers[key].batch + 1
        claims = key not in node.claimed
        if not claims and number not in node.disk.outbox.get(key[0], {}):
            trimmed = number <= node.group.facts.trimmed.get((node.disk.journal_id, key[0]), 0)
            require(not trimmed, "R25", f"{key} {number} was trimmed and is not published")
            del self._busy[key]
            return
        node.truth.require_lease("I2", f"{node.node} called a sink under epoch {epoch}")
        self._send(key, token, epoch, None if claims else number, seconds)

    def _send(
        self, key: QuerySink, token: object, epoch: int, number: int | None, seconds: float
    ) -> None:
        node, group = self.node, self.node.group
        start = node.core.deployment.marks[key[0]].start_after(key[1])
        content = node.disk.outbox.get(key[0], {}).get(number or 0)
        made_by = node.disk.made_by.get((key[0], number or 0), "")
        land = partial(self._land, key, token, epoch, number, start, (content, made_by))
        node.later(seconds / node.rate, lambda: self._give_up(key, token))
        if key[1] not in group.sinks_away:
            slow = group.random.random() < group.sink_slow
            delay = group.random.uniform(0.5, 5.0) if slow else group.random.uniform(0.002, 0.05)
            group.agenda.after(delay, land)

    def _give_up(self, key: QuerySink, token: object) -> None:
        """Abandon a call past its deadline: it may have landed, so read the ledger again."""
        if self._busy.get(key) is token:
            self.node.claimed.discard(key)
            self._call_later(key, AGAIN_AFTER)

    def _land(
        self,
        key: QuerySink,
        token: object,
        epoch: int,
        number: int | None,
        start: int,
        batch: tuple[object, str],
    ) -> None:
        """Run the sink's transaction: WHERE epoch = mine AND batch = n - 1."""
        node, ledger = self.node, self.node.ledgers[key]
        if key[1] in node.group.sinks_away:
            return
        result = "again"
        if ledger.epoch > epoch:
            node.group.count("fenced publishers")
            result = "fenced"
        elif number is None:
            if ledger.is_new:
                ledger.batch = start
            ledger.epoch, result = epoch, "claimed"
        elif (ledger.epoch, ledger.batch) == (epoch, number - 1):
            node.group.facts.published(key, number, *batch)
            ledger.batch, result = number, "published"
        told = (result, ledger.epoch, ledger.batch)
        node.group.tell(f"{key[0]}>{key[1]}", f"{node.node}'s call: {told}")
        if node.alive:
            node.later(0.001, lambda: self._hear(key, token, *told))

    def _hear(self, key: QuerySink, token: object, result: str, epoch: int, batch: int) -> None:
        node = self.node
        if self._busy.get(key) is not token:
            return
        if result == "fenced":
            node.fenced.add(key)
            del self._busy[key]
            node.read_max = max(node.read_max, (epoch, 0))
            node.feed(on.HigherEpochSeen(epoch, "a sink's ledger"))
            return
        if result == "claimed":
            node.claimed.add(key)
        elif result == "again":
            node.claimed.discard(key)
        self._call_later(key, 0.001)
        if result != "again":
            node.feed(on.SinkPublished(*key, batch))
