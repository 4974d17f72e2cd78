"""A random history of a stream whose log is a Kafka topic, and of two nodes that run a query on it.

The engine's own code asks simulated brokers where the topic ends, plans the marks, and checks
whether the topic is still the same before a batch counts. Programs write to the topic, in
transactions too, and so do receivers, whose clients repeat what was not acknowledged. Brokers die
and elect leaders, and some topics lose records. A former active goes on for a while.

No mark may cover what was not decided, each admitted batch must have the records that its mark had,
and the nodes may refuse the topic only if it has lost something.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ha_engine.connectors.kafka.log import KafkaLog, KafkaLogOptions, TopicIdentity, ends_of
from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.connectors.kafka.retention import TopicRetention
from ha_engine.core.marks import MarkLimits, QueryMarks
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import SourcePlace
from ha_engine.receive.log_history import LogHistory
from ha_engine.receive.offsets import OffsetTable, Pull
from ha_engine.types import LOG, Events, Mark, Pulled
from tests.dst.brokers import REPLICAS, Brokers, Partition, View
from tests.dst.history import History

QUERY, STREAM = "delays", "flights"
STEPS = 250
LIMITS = MarkLimits(
    max_events_per_batch=12,
    min_batch_interval=0.0,
    idle_batch_interval=1000.0,
    outbox_batches_max=4,
    outbox_bytes_max=1000,
)
OPTIONS = KafkaLogOptions.model_validate({"brokers": ["b:9092"], "topic": "flights"})
PLACE = SourcePlace("group", STREAM, LOG, pa.schema([]))


class Delayed(Exception):
    """An executor cannot read now, so Spark runs the task or the query again."""


class RecordsGone(Exception):
    """An executor asked for records that the topic does not have any more."""


@dataclass
class Known:
    """The judge's knowledge of a journal record: its end in each partition, and the view of the
    partition from which that end was answered."""

    ends: list[int]
    views: dict[int, View]


class Node:
    """A node with its copy of the journal, its reader of the log, and its query."""

    def __init__(self, history: KafkaHistory, name: str) -> None:
        self.history, self.name = history, name
        self.restart()

    def restart(self) -> None:
        """Begin a process that reads the journal up to its committed end."""
        self.log: KafkaLog | None = None
        self.identity = TopicIdentity(OPTIONS)
        self.logs, self.offsets = LogHistory(), OffsetTable()
        self.marks = QueryMarks(QUERY, frozenset({STREAM}), (), LIMITS)
        self.epoch, self.sequence, self.refused, self.admitted = 0, 0, "", 0
        # Up to here the copy is that of the active.
        self.shared = 0
        self.follow()

    def follow(self) -> None:
        """Copy what the journal has, unless this node still believes to be the active."""
        if self.epoch:
            return
        if self.shared < self.sequence:
            self.restart()
        for body in self.history.journal[self.sequence :]:
            self._apply(body)
        self.shared = self.sequence

    def _apply(self, body: Events | Mark) -> None:
        self.sequence += 1
        if isinstance(body, Mark):
            self.marks.apply_mark(self.sequence, body)
        else:
            self.marks.apply_events(self.sequence, body)
            self.logs.apply(self.sequence, body)
            self.offsets.apply(body)

    @property
    def is_active(self) -> bool:
        return self.epoch == self.history.epoch

    def _append(self, body: Events | Mark) -> None:
        """Write a record. The journal of a former active is truncated later."""
        self._apply(body)
        if self.is_active:
            self.history.journal.append(body)
            self.shared = self.sequence

    @property
    def committed(self) -> int:
        """The committed end of the journal, as far as the node has its records."""
        return min(self.history.committed, self.shared)

    # -- the reader of the log ---------------------------------------------------------------------

    def pull(self) -> bool:
        """Ask once where the log ends, and return whether the journal has a new record."""
        history = self.history
        if self.refused:
            return False
        known = self.offsets.find(STREAM, LOG).offset
        try:
            if self.log is None:
                log = KafkaLog(OPTIONS, PLACE)
                log.open(known)
                self.log = log
            batch = self.log.read(history.random.randint(1, 8), 0.0)
        except SourceUnavailable:
            history.counts["outages of the reader"] += 1
            self.log = None
            return False
        except SourceRefused as refused:
            history.judge_refusal(self, str(refused))
            self.log, self.refused = None, str(refused)
            return False
        if batch is None:
            return False
        self.offsets.require_next(STREAM, Pull(LOG, known, batch.offset, kept=batch.kept))
        history.judge_ends(self, known, batch.offset, batch.kept)
        pulled = Pulled(LOG, batch.offset, batch.kept)
        self._append(Events(STREAM, batch.kept, 0, pulled=(pulled,)))
        return True

    # -- the query ---------------------------------------------------------------------------------

    def plan(self) -> bool:
        """Plan the next mark, and return whether there is one."""
        history = self.history
        if not self.is_active or self.admitted < self.marks.last.number:
            return False
        self.marks.asked(history.agenda.now, self.admitted)
        mark = self.marks.plan(history.agenda.now, self.committed)
        if mark is None:
            return False
        self._append(mark)
        return True

    def run(self) -> bool:
        """Run the next batch whose mark is committed, and return whether it counts."""
        history, number = self.history, self.admitted + 1
        if number > self.marks.last.number or self.marks.record_of(number) > self.committed:
            return False
        before, mark = self.marks.mark_at(number - 1), self.marks.mark_at(number)
        start, end = self._at(before.through), self._at(mark.through)
        try:
            found = history.read(start, end)
            newest = self.logs.at(STREAM, self.sequence)
            assert newest is not None
            self.identity.require(newest)
        except (Delayed, SourceUnavailable):
            history.counts["batches delayed"] += 1
            return False
        except RecordsGone:
            history.counts["batches without their records"] += 1
            history.require(history.is_damaged, f"{self.name} lacks records that no topic lost")
            return False
        except SourceRefused as refused:
            history.judge_refusal(self, str(refused))
            return False
        self.admitted = number
        self.marks.note_admitted(number, len(found), 1)
        history.judge_batch(self, mark, found)
        return True

    @property
    def begin(self) -> list[int] | None:
        """The end of each partition at which the log begins, if the node has the first record."""
        return None if self.logs.at(STREAM, 0) is None else self._at(0)

    def _at(self, sequence: int) -> list[int]:
        offset = self.logs.at(STREAM, sequence)
        assert offset is not None
        (ends,) = json.loads(ends_of(offset)).values()
        return list(ends.values())

    def watch_retention(self) -> None:
        """Require that the headroom is negative if records are gone that the query needs."""
        history = self.history
        offset = self.logs.at(STREAM, self.marks.mark_at(self.admitted).through)
        partitions = history.brokers.topic.partitions
        if offset is None or any(one.deposed for one in partitions):
            return
        history.silent = True
        try:
            found = TopicRetention(OPTIONS).headroom(offset)
        except SourceUnavailable:
            return
        finally:
            history.silent = False
        needed = Positions.parse(offset).next
        if any(at < one.first for at, one in zip(needed, partitions, strict=False)):
            history.require(found is not None and found.events < 0, "no word of lost records")
            history.counts["headrooms below zero"] += 1


@dataclass
class Transaction:
    """A transaction of a program: the events with their places, and the end that its coordinator
    has decided, if it has."""

    number: int
    places: dict[int, tuple[Partition, int]] = field(default_factory=dict)
    is_committed: bool | None = None

    def has_all(self) -> bool:
        """Whether all replicas in sync have all events."""
        return all(
            partition.leader is not None
            and partition.high > at
            and partition.log[at].event == event
            for event, (partition, at) in self.places.items()
        )

    def lacking(self) -> list[Partition]:
        """The partitions that have events and no marker."""
        return [
            partition
            for partition, _ in self.places.values()
            if partition.is_writable
            and not any(
                one.event is None and one.transaction == self.number for one in partition.log
            )
        ]


class KafkaHistory(History):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        random = self.random
        # A lost end of a transaction changes which records count, and no reader can notice that.
        # So a topic that elects leaders uncleanly has no transactions here.
        self.unclean = random.random() < 0.25
        self.recreates = random.random() < 0.1
        self.deletes = random.random() < 0.3
        self.silent = False
        self.brokers = Brokers(random, self.counts, self._interlude)
        self.journal: list[Events | Mark] = []
        self.committed = self.epoch = self.events = 0
        self.is_damaged = False
        # The records of each offset in the journal, as the judge saw them.
        self.known: dict[str, Known] = {}
        self.batches: dict[int, tuple[int, ...]] = {}
        self.transactions: list[Transaction] = []
        # Events that wait for their ack, with their partition and offset.
        self.waiting: list[tuple[int, Partition, int]] = []
        self.acked: set[int] = set()
        self.nodes = [Node(self, name) for name in "ab"]
        self._fill(self.brokers.topic.partitions)

    def play(self) -> None:
        with self.brokers.serving():
            self._take_over(self.nodes[0])
            for _ in range(STEPS):
                self._step()
                self.wait(0.1)
            self._heal()

    # -- steps -------------------------------------------------------------------------------------

    def _step(self) -> None:
        active = next((one for one in self.nodes if one.is_active), self.nodes[0])
        node = self.random.choice(self.nodes)
        fate = self.random.random()
        if fate < 0.3:
            self._change_brokers()
        elif fate < 0.55:
            (node if node.epoch else active).pull()
        elif fate < 0.65:
            self.committed = len(self.journal)
        elif fate < 0.75:
            active.plan()
        elif fate < 0.93:
            node.follow()
            node.run()
        elif fate < 0.935:
            self._take_over(node)
        elif fate < 0.96 and not node.is_active:
            node.restart()
        elif fate < 0.98:
            node.watch_retention()
        else:
            self.brokers.outage = self.random.choice([0.0, 0.0, 0.0, 0.1, 0.9])

    def _take_over(self, node: Node) -> None:
        """Let the node become the active. Records that are not committed are lost, and the former
        active may not know of it."""
        self.epoch += 1
        self.tell(f"{node.name} becomes active; {len(self.journal) - self.committed} records lost")
        del self.journal[self.committed :]
        for one in self.nodes:
            one.shared = min(one.shared, self.committed)
        node.restart()
        node.epoch = self.epoch
        self.counts["takeovers"] += 1

    def _interlude(self) -> None:
        """Let something happen between two calls of the engine."""
        while not self.silent and self.random.random() < 0.3:
            self._change_brokers()

    # -- the topic ---------------------------------------------------------------------------------

    def _change_brokers(self) -> None:
        random, topic = self.random, self.brokers.topic
        number = random.randrange(len(topic.partitions))
        partition = topic.partitions[number]
        fate = random.random()
        if fate < 0.3:
            self._send(partition)
        elif fate < 0.4:
            self._write_in_transaction(partition)
        elif fate < 0.5:
            if self.transactions:
                self._go_on_with(random.choice(self.transactions))
        elif fate < 0.8:
            partition.replicate(random)
        elif fate < 0.825:
            partition.kill(random.choice(sorted(partition.alive))) if partition.alive else None
        elif fate < 0.84:
            partition.depose()
        elif fate < 0.89:
            partition.start(random.randrange(REPLICAS))
        elif fate < 0.96:
            self._elect(number)
            self.is_damaged = self.is_damaged or partition.was_truncated
        elif fate < 0.975:
            partition.deposed = None
        elif fate < 0.985 and self.deletes:
            self._delete(partition)
        elif fate < 0.99 and len(topic.partitions) < 4:
            topic.partitions.append(Partition())
            self.counts["partitions added"] += 1
        elif fate < 0.995 and self.recreates:
            self.brokers.recreate()
            self._fill(self.brokers.topic.partitions)
            self.transactions.clear()
            self.is_damaged = True
            self.counts["topics created again"] += 1
        self._acknowledge()

    def _fill(self, partitions: list[Partition]) -> None:
        """Perhaps let a new topic have events, such as those of an older one."""
        for partition in partitions:
            events = [self._new_event() for _ in range(self.random.choice([0, 3, 20]))]
            partition.fill(events, self.random.randint(0, len(events) // 2))

    def _elect(self, number: int) -> None:
        partition = self.brokers.topic.partitions[number]
        if partition.leader is not None:
            return
        before = partition.high
        partition.elect(self.random, unclean=self.unclean)
        if partition.leader is None:
            return
        view = f"{len(partition.log)} records, {before} counted before"
        self.tell(f"partition {number}: leader of epoch {partition.epoch} has {view}")
        if partition.was_truncated:
            for _ in range(self.random.randint(0, 20)):  # by programs that wait for no replica
                partition.append(self._new_event())

    def _send(self, partition: Partition) -> None:
        """Let a client send an event to a receiver, again if it got no answer."""
        if not partition.is_writable:
            return
        unanswered = [event for event, _, _ in self.waiting]
        repeats = unanswered and self.random.random() < 0.2
        event = self.random.choice(unanswered) if repeats else self._new_event()
        self.counts["events stored twice"] += bool(repeats)
        self.waiting.append((event, partition, partition.append(event)))

    def _new_event(self) -> int:
        self.events += 1
        return self.events

    def _acknowledge(self) -> None:
        """Acknowledge what all replicas in sync have, unless the reply is lost."""
        left = []
        for event, partition, at in self.waiting:
            if partition.leader is None or partition.high <= at:
                left.append((event, partition, at))
            elif partition.log[at].event == event and self.random.random() < 0.8:
                self.acked.add(event)
        self.waiting = left

    def _write_in_transaction(self, partition: Partition) -> None:
        if self.unclean or not partition.is_writable:
            return
        undecided = [one for one in self.transactions if one.is_committed is None]
        if undecided and self.random.random() < 0.7:
            transaction = self.random.choice(undecided)
        else:
            transaction = Transaction(len(self.transactions) + 1)
            self.transactions.append(transaction)
        event = self._new_event()
        transaction.places[event] = partition, partition.append(event, transaction.number)

    def _go_on_with(self, one: Transaction) -> None:
        """Decide a transaction, or write one of its markers. A program whose commit got no answer
        asks again, and gets the outcome of the first request."""
        if one.is_committed is None:
            one.is_committed = one.has_all() and self.random.random() < 0.8
            self.counts[
                "transactions committed" if one.is_committed else "transactions aborted"
            ] += 1
            if one.is_committed:
                self.acked.update(one.places)
        elif lacking := one.lacking():
            lacking[0].append(None, one.number, ok=one.is_committed)

    def _delete(self, partition: Partition) -> None:
        """Let retention delete records, perhaps ones that a node needs."""
        if partition.leader is not None:
            partition.first = self.random.randint(partition.first, partition.high)
            self.counts["deletions"] += 1
            begins = (node.begin for node in self.nodes)
            self._note_deletions([begin for begin in begins if begin is not None])

    def _note_deletions(self, begins: list[list[int]]) -> None:
        """Note whether the topic lacks records after one of these begins of a log. A node that
        begins again needs all of them."""
        for number, partition in enumerate(self.brokers.topic.partitions):
            for begin in begins:
                if partition.first > sum(begin[number : number + 1]):
                    self.is_damaged = True

    # -- executors ---------------------------------------------------------------------------------

    def read(self, start: list[int], end: list[int]) -> tuple[int, ...]:
        """Read the records of a batch as Spark's executors do, one partition after the other."""
        found: list[int] = []
        for number, high in enumerate(end):
            low = start[number] if number < len(start) else 0
            if low == high:
                continue
            if self.brokers.is_away():
                raise Delayed
            partitions = self.brokers.topic.partitions
            view = self.brokers.asked(number) if number < len(partitions) else None
            if view is None:
                raise Delayed
            if low < partitions[number].first:
                raise RecordsGone
            if high > view.stable:
                raise Delayed  # the consumer waits until its time is over
            found += view.events(low, high)
        return tuple(found)

    # -- the judge ---------------------------------------------------------------------------------

    def judge_ends(self, node: Node, before: str | None, offset: str, kept: int) -> None:
        """Judge the offsets that the reader of the log returned."""
        after = Positions.parse(offset)
        self.tell(f"{node.name} reads up to {after.next} of {after.identity[1]}")
        if before is None:
            first = [self.brokers.firsts[number] for number in range(len(after.next))]
            self.require(after.next == first, f"the log begins at {after.next}, not at {first}")
            self.known.setdefault(offset, Known(after.next, {}))
            self._note_deletions([after.next])  # which may have come after the answer
            return
        last = self.known[before]
        views = dict(last.views)
        for number, at in enumerate(after.next):
            begin = last.ends[number] if number < len(last.ends) else 0
            self.require(at >= begin, f"partition {number} goes back")
            if at == begin:
                continue
            topic, view = self.brokers.answers[number]
            self.require(at <= view.stable, f"offset {at} is not decided, only {view.stable}")
            self.require(topic == after.identity[1], f"the ends are of {topic}")
            if number in views:
                same = view.log[:begin] == views[number].log[:begin]
                self.require(same, f"partition {number} has other records before {begin}")
            views[number] = view
        moved = sum(after.next) - sum(last.ends)
        self.require(kept == moved, f"{kept} events are {moved} offsets")
        self.known[offset] = Known(after.next, views)
        self.counts["records of the journal"] += 1

    def judge_batch(self, node: Node, mark: Mark, found: tuple[int, ...]) -> None:
        """Require that the batch has the records that were there when the mark was planned."""
        marks = [one for one in self.journal[: self.committed] if isinstance(one, Mark)]
        before = marks[mark.number - 2].through if mark.number > 1 else 0
        start, end = self._known_at(before), self._known_at(mark.through)
        want = list[int]()
        for number, high in enumerate(end.ends):
            low = start.ends[number] if number < len(start.ends) else 0
            if low < high:
                want += end.views[number].events(low, high)
        self.tell(f"{node.name} admits batch {mark.number} with {found}")
        self.require(list(found) == want, f"batch {mark.number} should have {want}")
        self.batches[mark.number] = found
        self.counts["batches"] += 1

    def _known_at(self, sequence: int) -> Known:
        """The end of the log at a record. The log begins with its first record."""
        pulled = [one for one in self.journal[: max(1, sequence)] if isinstance(one, Events)]
        return self.known[pulled[-1].pulled[0].offset]

    def judge_refusal(self, node: Node, reason: str) -> None:
        """Require that a refused topic has lost records or is another one."""
        self.tell(f"{node.name} refuses: {reason}")
        self.counts["refusals"] += 1
        self.require(self.is_damaged, f"refused without a loss: {reason}")

    # -- the end -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        brokers, random = self.brokers, self.random
        brokers.outage, self.silent = 0.0, True
        for partition in brokers.topic.partitions:
            partition.deposed = None
            for replica in range(REPLICAS):
                partition.start(replica)
            partition.elect(random, unclean=self.unclean)
        for _ in range(200):
            for partition in brokers.topic.partitions:
                partition.replicate(random)
            for transaction in self.transactions:
                self._go_on_with(transaction)
        self._acknowledge()
        self._take_over(self.nodes[0])
        self.nodes[1].restart()
        active = self.nodes[0]
        for _ in range(2000):
            self.wait(0.1)
            moved = active.pull()
            self.committed = len(self.journal)
            moved = active.plan() or moved
            self.committed = len(self.journal)
            for node in self.nodes:
                node.follow()
                moved = node.run() or moved
            if not moved:
                break
        if self.is_damaged:
            self.counts["damaged topics"] += 1
            return
        self._require_all(active)

    def _require_all(self, active: Node) -> None:
        """Require that the batches have each committed event of the topic once."""
        begin = self._known_at(0).ends
        stored, before = list[int](), set[int | None]()
        for number, partition in enumerate(self.brokers.topic.partitions):
            first = sum(begin[number : number + 1])
            stored += partition.view.events(first, len(partition.log))
            before.update(one.event for one in partition.log[:first])
        for node in self.nodes:
            last = active.marks.last.number
            self.require(node.admitted == last, f"{node.name} ran {node.admitted} of {last}")
        found = [event for number in sorted(self.batches) for event in self.batches[number]]
        self.require(sorted(found) == sorted(stored), f"{stored} are stored, {found} are read")
        lost = set[int]() if self.unclean else self.acked - set(found) - before
        self.require(not lost, f"{sorted(lost)} were acknowledged")
        self.counts["whole histories"] += 1
