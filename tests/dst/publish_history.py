"""A random history of two nodes' publishers, and of one sink with a transactional ledger.

Publisher and deliveries are the engine's own, and run in virtual time. The sink fails before or
after it has taken a batch, answers late, and takes a call whose caller no longer waits. Each batch
must be in the sink once and in order, whoever publishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa

from ha_engine.errors import Fenced, SinkUnavailable
from ha_engine.outbox import Outbox, OutboxBatch
from ha_engine.outbox.batch_file import read_batch_file, write_batch_file
from ha_engine.publish import Deadline, Publisher
from ha_engine.publish.delivery import Timing
from tests.dst.history import History
from tests.dst.loop import ProcessLoop

QUERY, SINK, GROUP = "delays", "table", "7c0e"
STEPS = 80
SLOW_SECONDS_MAX = 3.0
STOPPED_WITHIN = 10.0


@dataclass
class Ledger:
    """The ledger and the rows of the sink, which change together."""

    epoch: int = 0
    batch: int = 0
    rows: list[list[int]] = field(default_factory=list)


class Node:
    """A node's outbox, publisher and authority. The node is also the publisher's sink."""

    name, dead_letters = SINK, 0

    def __init__(self, history: PublishHistory, node: str) -> None:
        self.history, self.node = history, node
        self.directory = history.root / node
        self.outbox = Outbox.open(self.directory)
        self.loop = ProcessLoop(history.agenda, history.random, self._take_delay)
        self.epoch = self.admitted = 0
        self.epochs = set[int]()
        self.is_publishing = False
        # The last batch that the publisher reported under this epoch.
        self.reported = -1
        self.authority_ends = 0.0
        self.busy_until = 0.0
        # The epoch under which the last call of the sink succeeded; None if that is not known.
        self.known_epoch: int | None = None
        self._delay = 0.0
        self.publisher = self.loop.run(self._publisher)

    def _publisher(self) -> Publisher:
        return Publisher(
            self.outbox,
            {(QUERY, SINK): self},
            self,
            on_published=self._published,
            on_fenced=self._fenced,
            group_id=lambda: GROUP,
            timing=Timing(2.0, backoff_max=0.5, jitter=self.history.pauses.uniform),
        )

    # -- the node ----------------------------------------------------------------------------------

    def start(self, epoch: int) -> None:
        self.history.tell(f"{self.node} publishes under epoch {epoch}")
        self.epoch, self.reported, self.is_publishing = epoch, -1, True
        self.epochs.add(epoch)
        self.loop.run(lambda: self.publisher.start(epoch))

    def stop(self) -> None:
        """Stop publishing; afterwards no call may be at work, because the node demotes next."""
        self.history.tell(f"{self.node} stops")
        stopping = self.loop.run(lambda: self.loop.create_task(self.publisher.stop()))
        epoch = self.epoch
        stopping.add_done_callback(lambda _: self._stopped(epoch))
        self.history.agenda.after(
            STOPPED_WITHIN, lambda: self.history.require(stopping.done(), "stops for ever")
        )

    def _stopped(self, epoch: int) -> None:
        history = self.history
        self.is_publishing = self.is_publishing and self.epoch != epoch
        history.tell(f"{self.node} has stopped")
        history.require(history.agenda.now >= self.busy_until, "stopped during a call")
        history.counts["stops"] += 1

    def admit(self) -> None:
        number = self.admitted + 1
        file = f"{QUERY}/pending/{number}.i.arrow"
        (self.directory / file).parent.mkdir(parents=True, exist_ok=True)
        rows = pa.table({"n": rows_of(number)})
        written = write_batch_file(self.directory / file, rows, query=QUERY, number=number)
        self.outbox.admit(QUERY, number, file, written.rows, written.bytes)
        self.admitted = number
        self.loop.run(lambda: self.publisher.admitted(QUERY, number))

    def _published(self, query: str, sink: str, batch: int) -> None:
        reached = self.history.ledger.batch
        self.history.require(batch <= reached, f"{batch} is reported, the ledger has {reached}")
        self.reported = batch
        self.history.reported = max(batch, self.history.reported)

    def _fenced(self, epoch: int) -> None:
        self.history.tell(f"{self.node} is fenced by epoch {epoch}")
        self.history.require(epoch not in self.epochs, "fenced by its own epoch")
        # The core ignores the fence of an earlier term, which a call may report late.
        self.history.counts["fenced" if epoch > self.epoch else "fenced in an earlier term"] += 1

    # -- its authority -----------------------------------------------------------------------------

    def remaining_seconds(self) -> float:
        return self.authority_ends - self.history.agenda.now

    def highest_planned(self, query: str) -> float:
        return max(node.admitted for node in self.history.nodes)

    # -- its sink ----------------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema) -> None:
        pass

    def close(self) -> None:
        pass

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        self.known_epoch = None
        self._begin(f"claims under epoch {epoch}", deadline)
        self._perhaps_fail(lambda: self._raise_epoch(epoch))
        self._raise_epoch(epoch)
        self._perhaps_fail(lambda: None)
        self.known_epoch = epoch
        return self.history.ledger.batch

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        history, rows = self.history, read_batch_file(batch.path)["n"].to_pylist()
        history.require(self.known_epoch == epoch, "sent without a look at the ledger")
        self.known_epoch = None
        self._begin(f"sends batch {number} under epoch {epoch}", deadline)
        self._perhaps_fail(lambda: self._take(number, rows, epoch))
        self._take(number, rows, epoch)
        self._perhaps_fail(lambda: None)
        self.known_epoch = epoch

    def _begin(self, what: str, deadline: Deadline) -> None:
        history = self.history
        history.tell(f"{self.node} {what}")
        history.require(self.remaining_seconds() > 0, "called the sink without authority")
        slow = history.random.random() < 0.2
        self._delay = history.random.uniform(0, SLOW_SECONDS_MAX) if slow else 0.0
        self.busy_until = history.agenda.now + self._delay
        if history.sink_is_down or deadline.remaining_seconds() <= 0:
            raise SinkUnavailable("the sink does not answer")

    def _perhaps_fail(self, effect: Callable[[], None]) -> None:
        """Fail with an unknown outcome; ``effect`` may happen long after."""
        history = self.history
        if history.random.random() < history.failure_rate:
            history.counts["calls without an answer"] += 1
            if history.random.random() < 0.5:
                history.agenda.after(history.random.uniform(0, 5), lambda: self._land(effect))
            raise SinkUnavailable("the connection broke")

    def _land(self, effect: Callable[[], None]) -> None:
        self.history.counts["late calls"] += 1
        try:
            effect()
        except Fenced:
            self.history.counts["late calls fenced"] += 1

    def _raise_epoch(self, epoch: int) -> None:
        ledger = self.history.ledger
        if epoch < ledger.epoch:
            raise Fenced(ledger.epoch, SINK)
        ledger.epoch = epoch

    def _take(self, number: int, rows: list[int], epoch: int) -> None:
        ledger, history = self.history.ledger, self.history
        if epoch < ledger.epoch:
            raise Fenced(ledger.epoch, SINK)
        if number <= ledger.batch:
            return
        history.require(number == ledger.batch + 1, f"sent {number} after {ledger.batch}")
        ledger.batch = number
        ledger.rows.append(rows)
        history.counts["batches published"] += 1

    def _take_delay(self) -> float:
        delay, self._delay = self._delay, 0.0
        return delay


class PublishHistory(History):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.ledger, self.pauses = Ledger(), Random(seed)
        self.epoch = 0
        self.sink_is_down = False
        # The last batch that any node reported as published.
        self.reported = 0
        self.failure_rate = self.random.choice([0.0, 0.1, 0.3])
        self.nodes = [Node(self, name) for name in "ab"]

    def play(self) -> None:
        try:
            for _ in range(STEPS):
                self._step()
                self.wait(self.random.expovariate(4))
            self._heal()
        finally:
            for node in self.nodes:
                node.loop.kill()
                node.loop.dispose()

    def _step(self) -> None:
        node = self.random.choice(self.nodes)
        fate = self.random.random()
        if fate < 0.5:
            node.admit()
        elif fate < 0.6:
            self._become_active(node)
        elif fate < 0.7:
            node.stop()
        elif fate < 0.75:
            self.sink_is_down = not self.sink_is_down
        elif fate < 0.8:
            # A node learns from the active what is published, and stops publishing before that.
            known = node.reported if node.is_publishing else self.reported
            node.outbox.trim(QUERY, self.random.randint(0, max(0, min(known, node.admitted))))
        elif node.epoch == self.epoch:
            node.authority_ends = self.agenda.now + 2.0

    def _become_active(self, node: Node) -> None:
        """Take the lease over, once the other node's authority has ended, unless a clock is
        wrong. The other node may not know of the takeover."""
        self.epoch += 1
        if self.random.random() < 0.7:
            self.wait(max(0.0, *(other.remaining_seconds() for other in self.nodes)) + 0.01)
        else:
            self.counts["takeovers too early"] += 1
        node.authority_ends = self.agenda.now + 2.0
        node.start(self.epoch)
        self.counts["takeovers"] += 1

    def _heal(self) -> None:
        self.sink_is_down, self.failure_rate = False, 0.0
        node = max(self.nodes, key=lambda one: one.admitted)
        self._become_active(node)
        node.authority_ends = self.agenda.now + 1000
        self.wait(120)
        done = self.ledger.batch
        self.require(done == node.admitted, f"{done} of {node.admitted} batches are published")
        self.require(node.reported == done, f"{node.reported} of {done} batches are reported")
        self.require(self.ledger.rows == [rows_of(n + 1) for n in range(done)], "other rows")
        for one in self.nodes:
            self.require(not one.publisher.failed.done(), f"{one.node} failed")
            self._close(one)

    def _close(self, node: Node) -> None:
        closed = node.loop.run(lambda: node.loop.create_task(node.publisher.close()))
        self.wait(STOPPED_WITHIN)
        self.require(closed.done(), f"{node.node} closes for ever")


def rows_of(number: int) -> list[int]:
    return [number * 10 + row for row in range(number % 3 + 1)]
