"""A random history of one node's snapshots: taken, damaged, trimmed by, and restored.

Capture, upload, base, restore and trim are the engine's own. The database is a store in memory, and
Spark is a stand-in that writes the files of a checkpoint without an fsync. The group has a log of
records, of which the node has a prefix; after a restore the node copies the rest from the log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ha_engine.core import Deployment, JournalState, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.errors import (
    DatabaseUnreachable,
    DiskFailed,
    DraftLost,
    JournalDamaged,
    OutboxDamaged,
    SnapshotDamaged,
    SnapshotFailed,
)
from ha_engine.journal import Journal
from ha_engine.journal.reading import read_records
from ha_engine.journal.writer import JournalWriter
from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import read_batch_file, write_batch_file
from ha_engine.query.checkpoints import CLEAN_FILE, STAMP_FILE, is_whole, stamp_restored
from ha_engine.receive.offsets import OffsetTable
from ha_engine.receive.producers import ProducerTable
from ha_engine.snapshot import base_file
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.base_file import JournalBase
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.manifest import CapturedQuery, Manifest
from ha_engine.snapshot.restore import Places, Restoring, finish
from ha_engine.snapshot.service import Facts, SnapshotService
from ha_engine.snapshot.verification import verify
from ha_engine.system.disk import disk
from ha_engine.system.files import CREATE, make_directory, write_all
from ha_engine.system.fsync import boot_id
from ha_engine.types import (
    Application,
    Body,
    EpochStart,
    Events,
    Holder,
    Mark,
    Position,
    Pulled,
    QueryVersion,
    Record,
    SnapshotPlace,
    Submission,
)
from ha_engine.types import (
    History as Positions,
)
from tests.core.world import LIMITS
from tests.dst.disk import Crashed
from tests.dst.history import DiskHistory, Refused
from tests.dst.loop import Thread
from tests.dst.revisions import FailingCalls, Revisions

GROUP, GROUP_ID, QUERY, SINK, LINEAGE = "test", "7c0e", "delays", "board", 2
ME = Holder("node-a", "process")
LIVES, KEPT = 10, 2
UNCHANGED, CHANGED = "app", "changed app"


@dataclass
class Group:
    """The log of the group, and what Spark computes from it.

    Batch n ends with the record at sequence ``ends[n - 1]``, and ``states[n - 1]`` are the bytes
    of its changes of Spark's state.
    """

    records: list[Record] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)

    def copy(self) -> Group:
        return Group(list(self.records), list(self.ends), list(self.states))

    @property
    def epoch(self) -> int:
        return self.records[-1].position.epoch if self.records else 0

    def position(self, sequence: int) -> Position:
        return self.records[sequence - 1].position if sequence else Position(0, 0)

    def mark(self, number: int) -> Position:
        """The position of the record that ends batch ``number``."""
        found = (one.position for one in self.records if _ends(one.body, number))
        return next(found)

    def batches(self, last: int) -> int:
        """The number of batches whose marks are among the records up to ``last``."""
        return sum(isinstance(one.body, Mark) for one in self.records[:last])

    def give_up_after(self, last: int) -> None:
        del self.records[last:]
        count = self.batches(last)
        del self.ends[count:], self.states[count:]


def _ends(body: Body, number: int) -> bool:
    return isinstance(body, Mark) and body.number == number


@dataclass(frozen=True)
class Coming:
    """A download that may be complete, with the records that the node sets aside.

    ``former`` is the group before it gave up records.
    """

    place: SnapshotPlace
    given_up: tuple[Record, ...]
    former: Group


@dataclass
class Node:
    """The open data of one process."""

    journal: Journal
    outbox: Outbox
    writer: JournalWriter
    service: SnapshotService


class SnapshotHistory(DiskHistory):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.home = self.disk.root / "data"
        self.places = Places(self.home, self.home / "checkpoints")
        make_directory(self.places.checkpoints, files=self.files)
        self.disk.mounts = (self.places.checkpoints,)
        self.calls = FailingCalls(self.random, self.counts)
        self.store = Revisions(
            self.random, lambda: GROUP_ID, holds=lambda *_: True, call=self.calls
        )
        self.group = Group()
        # The records and batches that the disk must have, and those that it may lack.
        self.durable = self.admitted = self.trimmed = self.floor = 0
        self.places_taken: dict[Position, SnapshotPlace] = {}
        self.floors: dict[Position, int] = {}
        self.coming: list[Coming] = []
        self.given_up: list[list[Record]] = []
        self.boots, self.journal_id, self.healed = 0, "", False
        self.epochs_begun = 0
        self.application = UNCHANGED
        self.just_restored: SnapshotPlace | None = None

    def play(self) -> None:
        for _ in range(LIVES):
            self.plan_a_fault(0.15, 40)
            self.plan_a_misread(0.1, 40)
            if (node := self._start()) is not None:
                self.files.plan_no_fault()
                self._live(node)
                node.journal.close()
            self._end()
        self._require_restorable()

    def _end(self) -> None:
        self.end_process()
        if self.random.random() < 0.4:
            self.tell("power is lost")
            self.disk.lose_power()
            self._boot_again()
        self.start_process()

    def _boot_again(self) -> None:
        """Give the stamps of the checkpoints the boot id of an earlier boot."""
        self.boots += 1
        for path in [*self.places.checkpoints.glob("*/ha_engine.*")]:
            if path.name in (STAMP_FILE, CLEAN_FILE):
                content = self.disk.content(path)
                assert content is not None
                text = bytes(content.durable).replace(boot_id().encode(), b"boot %d" % self.boots)
                content.durable[:] = text
                path.write_bytes(text)

    # -- the start of a process --------------------------------------------------------------------

    def _start(self) -> Node | None:
        self.files.hang_in = 0
        faulty = self.faulty
        try:
            with disk(self.home):
                make_directory(self.home, files=self.files)
            finish(self.places, self._checkpoints(), self.files)
            journal = Journal.open(
                self.home / "journal", group=GROUP, segment_size=700, files=self.files
            )
            outbox = Outbox.open(self.home / "outbox", files=self.files)
            self._check(journal, outbox)
            return self._node(journal, outbox)
        except Crashed:
            self.tell("dies at its start")
        except OSError as error:
            self.require(False, f"a bare error of the disk: {error}")
        except (DiskFailed, JournalDamaged, OutboxDamaged) as error:
            if not (faulty or self.files.fired):
                self.require(self.disk.has_holes, f"the data is refused: {error}")
                raise Refused(str(error)) from error
            self.tell(f"fails at its start: {error}")
        return None

    def _settle_restore(self) -> None:
        """The last complete download is in its place now."""
        coming = self.coming[-1]
        self.tell(f"restored: {coming.place.position}")
        self.coming = []
        self._begin_from(coming)
        self.counts["restores finished"] += 1

    def _begin_from(self, coming: Coming) -> None:
        place = self.just_restored = coming.place
        if coming.given_up:
            self.given_up.append(list(coming.given_up))
            self.counts["records set aside"] += len(coming.given_up)
        self.durable = self.trimmed = place.position.sequence
        (self.admitted,) = [number for _, number in place.batches]
        self.floor = self.floors[place.position]

    def _check(self, journal: Journal, outbox: Outbox) -> None:
        last = journal.last.sequence
        self.tell(f"opened: {journal.first} to {journal.last}, {outbox.last_admitted(QUERY)}")
        if self.coming and journal.journal_id != self.journal_id:
            self._settle_restore()
        elif self.coming:
            # The loss of power came before the download was durable, so the old data is there.
            self.group, self.coming = self.coming[-1].former, []
        self.require(last >= self.durable, f"{last} is the last, {self.durable} was durable")
        self.require(last <= len(self.group.records), "records appeared from nowhere")
        self.require(journal.first <= self.trimmed + 1, f"trimmed up to {journal.first}")
        found = list(journal.read(journal.first))
        self.require(found == self.group.records[journal.first - 1 : last], "other records")
        self.durable, self.journal_id = last, journal.journal_id
        self.require(journal.epochs == _epochs(self.group.records[:last]), "other epochs")
        self._check_base(journal)
        self._check_outbox(outbox)
        kept = [_frames(path) for path in sorted((self.home / "journal").glob("*.frames"))]
        self.require(all(one in kept for one in self.given_up), "given-up records are gone")

    def _check_base(self, journal: Journal) -> None:
        """Together, base and journal have the state of all records."""
        found = base_file.load(self.home / "journal" / base_file.NAME, self.files)
        begins = found.base.position.sequence if found else 0
        self.require(journal.first <= begins + 1, f"records before {journal.first} are lost")
        records = self.group.records[: self.durable]
        whole, partly = _replayed(None, records), _replayed(found, records[begins:])
        self.require(partly == whole, f"base and journal give {partly}, not {whole}")
        if self.just_restored is not None:
            (number,) = [number for _, number in self.just_restored.batches]
            mark = Mark(QUERY, number, self.just_restored.position.sequence)
            assert found is not None
            (query,) = found.base.queries
            self.require(query.last == mark, f"the base ends with {query.last}, not {mark}")
            self.require(query.version == _version(), f"the base has {query.version}")
            self.require(found.base.application == UNCHANGED, "another application in the base")
            self.just_restored = None

    def _check_outbox(self, outbox: Outbox) -> None:
        first, trimmed = outbox.first(QUERY), outbox.trimmed_through(QUERY)
        floor = trimmed if first is None else first - 1
        outbox.set_outbox_floor(QUERY, floor)
        last = outbox.last_admitted(QUERY)
        self.require(floor <= self.floor, f"batch {floor} is gone")
        reached = last >= self.admitted or self.admitted <= self.floor
        self.require(reached, f"batch {self.admitted} was admitted, {last} is the last")
        ended = sum(end <= self.durable for end in self.group.ends)
        self.require(last <= ended, f"batch {last} appeared from nowhere")
        for number in range(floor + 1, last + 1):
            batch = outbox.batch(QUERY, number)
            assert batch is not None
            rows = read_batch_file(batch.path, self.files)
            self.require(rows.equals(_rows(self.group, number)), f"batch {number} has other rows")
        self.admitted = last

    def _checkpoints(self) -> CheckpointDirectories:
        return CheckpointDirectories(self.places.checkpoints, self.files)

    def _node(self, journal: Journal, outbox: Outbox) -> Node:
        def writer() -> JournalWriter:
            return JournalWriter(journal, self._durable, self._failed, thread=Thread(self.loop))

        def service() -> SnapshotService:
            path, home, files = self.home / "journal" / base_file.NAME, self.home, self.files
            deployment = partial(_deployment, self.application)
            builder = BaseBuilder(path, journal, deployment, lambda: ProducerTable(10, 8), files)
            capture = Capture(self.places.checkpoints, home, outbox, files)
            restoring = Restoring(
                self.store,
                self.places,
                self._checkpoints(),
                GROUP,
                self.application,
                _objection,
                files=self.files,
                clock=self.loop.time,
            )
            return SnapshotService(
                self.store, capture, builder, node_writer, ME, _facts, restoring, KEPT
            )

        # An operator may start the node with another application. The group still runs the former
        # one, as long as no record of the change is committed.
        changed = not self.healed and self.random.random() < 0.15
        self.application = CHANGED if changed else UNCHANGED

        self.calls.before_call = self._perhaps_die
        node_writer = self.loop.run(writer)
        return Node(journal, outbox, node_writer, self.loop.run(service))

    def _durable(self, sequence: int) -> None:
        self.durable = sequence

    def _failed(self, error: BaseException) -> None:
        self.tell(f"failed: {error}")
        self.failure = error

    def _perhaps_die(self) -> None:
        """Die within a call of the database."""
        if self.files.dead:
            raise Crashed
        if self.random.random() < 0.005:
            self.counts["crashes in a call of the store"] += 1
            self.files.kill()
            raise Crashed

    # -- one life ----------------------------------------------------------------------------------

    def _live(self, node: Node) -> None:
        self._do(self._mend_checkpoint, node)
        self._do(self._copy, node)
        self.plan_a_fault(0.4, 80)
        self.files.hang_in = 0
        self.plan_a_misread(0.3, 60)
        deeds: dict[Callable[[Node], None], int] = {
            self._grow: 8,
            self._take: 5,
            self._trim: 3,
            self._trim_outbox: 2,
            self._restore: 3,
            self._damage: 2,
            self._verify: 1,
            self._lose_checkpoint: 1,
            self._toggle: 1,
        }
        count = self.random.randint(1, 14)
        for deed in self.random.choices([*deeds], [*deeds.values()], k=count):
            self._do(deed, node)

    def _do(self, deed: Callable[[Node], None], node: Node) -> None:
        if self.over:
            return
        try:
            deed(node)
        except Crashed:
            self.files.kill()
        except OSError as error:
            self.require(False, f"a bare error of the disk: {error}")
        except (DiskFailed, OutboxDamaged, JournalDamaged) as error:
            self.require(bool(self.files.fired), f"the disk did not fail: {error}")
            self.tell(f"the node ends: {error}")
            self.files.kill()

    def _grow(self, node: Node) -> None:
        """The group appends the records of a batch, which the node copies."""
        group, random = self.group, self.random
        bodies = list[Body]()
        if not group.records or random.random() < 0.2:
            bodies.append(EpochStart("node-a", "process"))
        if not group.records:
            bodies.append(Application(UNCHANGED, (_version(),)))
        number = len(group.ends) + 1
        for _ in range(random.randint(1, 3)):
            pulled = Pulled("drop", f"file {len(group.records)}", 1, 0)
            submission = Submission("p", len(group.records) + 1, "ab" * 16, 1)
            bodies.append(Events("flights", 2, 0, (submission,), (pulled,)))
        self._append(bodies)
        end = len(group.records)
        self._append([Mark(QUERY, number, end)])
        group.ends.append(end)
        group.states.append(random.randbytes(random.choice([40, 900])))
        self._copy(node)

    def _append(self, bodies: list[Body]) -> None:
        records = self.group.records
        for body in bodies:
            # A forced failover gives up epochs too, and none of them begins again.
            self.epochs_begun += isinstance(body, EpochStart)
            epoch = self.epochs_begun if isinstance(body, EpochStart) else self.group.epoch
            place, payload = Position(epoch, len(records) + 1), self.random.randbytes(150)
            payload = payload if isinstance(body, Events) else b""
            records.append(Record(place, len(records), body, payload))

    def _copy(self, node: Node) -> None:
        """Copy the group's log, run its batches, and admit their outputs."""
        group = self.group
        rest = group.records[node.journal.last.sequence :]
        if rest:
            self.tell(f"append {rest[0].position} to {rest[-1].position}")
            self.loop.run(lambda: node.writer.append(rest))
            self.wait_for(lambda: self.durable == len(group.records))
        if self.over:
            raise Crashed
        for number in range(self.admitted + 1, len(group.ends) + 1):
            self._run_batch(number)
            file = self.home / "outbox" / QUERY / "pending" / f"{number}.i.arrow"
            with disk(file):
                make_directory(file.parent, files=self.files, durable=False)
            rows = _rows(group, number)
            write_batch_file(file, rows, query=QUERY, number=number, files=self.files)
            node.outbox.admit(
                QUERY, number, f"{QUERY}/pending/{file.name}", number, file.stat().st_size
            )
            self.admitted = number
            self._commit_batch(number)

    # -- the stand-in for Spark --------------------------------------------------------------------

    @property
    def _checkpoint(self) -> Path:
        return self.places.checkpoints / QUERY

    def _run_batch(self, number: int) -> None:
        offset = json.dumps({"mark": number, "sequence": self.group.ends[number - 1]})
        self._write(f"offsets/{number - 1}", f"v1\n{{}}\n{offset}".encode())
        self._write(f"state/0/0/{number}.delta", self.group.states[number - 1])

    def _commit_batch(self, number: int) -> None:
        self._write(f"commits/{number - 1}", b"v1\n{}")

    def _write(self, name: str, content: bytes) -> None:
        path = self._checkpoint / name
        with disk(path):
            make_directory(path.parent, files=self.files, durable=False)
            with self.files.open(path, CREATE) as file:
                write_all(file, content)

    def _mend_checkpoint(self, node: Node) -> None:
        """Have the checkpoint after the last batch: of this boot, of a snapshot, or built anew."""
        lineage = f"{node.journal.journal_id}:{LINEAGE}"
        begun = 0
        if is_whole(self.places.checkpoints, QUERY, lineage):
            begun = self._require_state(self.admitted)
        elif self.store.visible and self.random.random() < 0.8:
            begun = self._bring(node, lineage)
        if not begun:
            self.tell("build the checkpoint anew")
            self._delete_checkpoint()
            with disk(self._checkpoint):
                make_directory(self._checkpoint, files=self.files)
            stamp_restored(self._checkpoint, lineage, self.files)
            self._write("metadata", b'{"id":"one"}')
        for number in range(begun + 1, self.admitted + 1):
            self._run_batch(number)
            self._commit_batch(number)

    def _bring(self, node: Node, lineage: str) -> int:
        """Restore the checkpoint alone, and return the batch after which its state is."""
        run = do.RunQuery(QUERY, lineage, Mark(QUERY, 0, 0), must_resume=True, digest="v1")
        positions, service = replace(self._positions(), ends=node.journal.last), node.service
        # The outbox may get the batches of any revision, and lose those before.
        lefts = [left for at, left in self.floors.items() if positions.has(at)]
        self.floor = max([self.floor, *lefts])
        done = self._call(lambda: service.bring_state(run, positions))
        if done is None:
            raise Crashed
        if (error := done.exception()) is not None:
            self.tell(f"no state is brought: {error}")
            allowed = isinstance(error, SnapshotDamaged | DatabaseUnreachable)
            self.require(allowed or bool(self.files.fired), f"no state is brought: {error!r}")
            if isinstance(error, DiskFailed):
                raise error
            return 0
        self.counts["states brought"] += 1
        restored = done.result()
        assert restored is not None
        (number,) = [number for _, number in self.places_taken[restored.revision.position].batches]
        self.tell(f"brought the state after batch {number}, and {len(restored.batches)} batches")
        self.require(restored.number == number, f"not {number}, but {restored.number}")
        self.counts["batches brought"] += len(restored.batches)
        self.admitted = max(self.admitted, number)
        self.require(node.outbox.last_admitted(QUERY) == self.admitted, "other batches")
        self.require(is_whole(self.places.checkpoints, QUERY, lineage), "the state is not whole")
        self.require(self._require_state(number) == number, f"not the state after {number}")
        return number

    def _require_state(self, number: int) -> int:
        """Require the files of the state up to the last finished batch, which is returned.

        Without a loss of power, a process that dies leaves all files of a finished batch.
        """
        commits = [int(one.name) for one in self._files_of("commits") if one.name.isdecimal()]
        last = min(number, max(commits, default=-1) + 1)
        for one in range(1, last + 1):
            path = self._checkpoint / f"state/0/0/{one}.delta"
            self.require(path.is_file(), f"the state lacks {path}")
            state = self.group.states[one - 1]
            self.require(path.read_bytes() == state, f"other state after batch {one}")
        return last

    def _files_of(self, directory: str) -> list[Path]:
        place = self._checkpoint / directory
        return [*place.iterdir()] if place.is_dir() else []

    # -- deeds -------------------------------------------------------------------------------------

    def _take(self, node: Node) -> None:
        number = self.random.randint(max(0, self.admitted - 1), self.admitted)
        if number == 0 or self.group.ends[number - 1] < self.trimmed:
            return
        position = self.group.position(self.group.ends[number - 1])
        place = SnapshotPlace(1, position, ((QUERY, number),), self.group.mark(number))
        self.places_taken[position], floor = place, node.outbox.floor(QUERY)
        self.floors[position] = max(self.floors.get(position, 0), min(floor, number))
        self.tell(f"take a snapshot after batch {number} at {position}")
        done = self._call(lambda: node.service.take(place))
        if done is None:
            return
        if (error := done.exception()) is not None:
            self._require_no_snapshot(error)
            return
        if self.random.random() < 0.1:
            return  # another node is the active
        shown = self._call(lambda: node.service.show(done.result(), self.group.epoch))
        self._require_complete()
        if shown is not None and shown.exception() is None:
            self.counts["snapshots"] += 1
        elif shown is not None:
            allowed = isinstance(shown.exception(), DraftLost | DatabaseUnreachable)
            self.require(allowed, f"not shown: {shown.exception()!r}")

    def _require_no_snapshot(self, error: BaseException) -> None:
        self.tell(f"no snapshot: {error}")
        self.counts["snapshots that failed"] += 1
        if isinstance(error, DatabaseUnreachable | DraftLost):
            return
        of_the_disk = (SnapshotFailed, OutboxDamaged, JournalDamaged, DiskFailed)
        allowed = isinstance(error, of_the_disk) and self.files.fired
        self.require(bool(allowed), f"no snapshot: {error!r}")

    def _require_complete(self) -> None:
        for number in self.store.visible:
            self.require(not self.store.is_incomplete(number), f"revision {number} is incomplete")

    def _trim(self, node: Node) -> None:
        """Trim the journal to the oldest visible revision that this history has."""
        positions = self._positions()
        known = [row.position for row in map(self.store.rows.get, self.store.visible) if row]
        mine = [one for one in known if one and positions.has(one)]
        if not mine or min(mine).sequence > self.durable:
            return
        position = min(mine)
        if position.sequence < node.journal.first:
            return
        self.trimmed = max(self.trimmed, position.sequence)
        self.tell(f"trim through {position}")
        done = self._call(lambda: node.service.trim(position))
        if done is None:
            return
        if (error := done.exception()) is not None:
            raise error
        self.counts["trims"] += 1
        self._check_base(node.journal)

    def _trim_outbox(self, node: Node) -> None:
        through = self.random.randint(0, self.admitted)
        self.floor = max(self.floor, through)
        self.tell(f"trim the outbox through {through}")
        node.outbox.trim(QUERY, through)

    def _restore(self, node: Node) -> None:
        """Restore a snapshot in place of all data; perhaps the group gave up records."""
        group, given_up = self.group, None
        may_give_up = not self.healed and self.durable == len(group.records) > 1
        if may_give_up and self.random.random() < 0.3:
            given_up = group.position(self.random.randint(1, len(group.records) - 1))
        positions = replace(self._positions(), ends=given_up)
        restore = do.Restore(positions, "a test", given_up)
        self._plan_a_fault_of_a_restore()
        before, expected = self._data(), self._expected(positions)
        lost = tuple(group.records[given_up.sequence :]) if given_up else ()
        if lost and lost[0].position.sequence < node.journal.first:
            lost = lost[node.journal.first - lost[0].position.sequence :]
        self.tell(f"restore a snapshot up to {given_up or group.position(self.durable)}")
        former = group.copy()
        known = {one: Coming(place, lost, former) for one, place in self.places_taken.items()}
        done = self._call(lambda: node.service.restore(restore))
        if done is None:
            # The download may be complete.
            self.coming = [known[one] for one in expected if one in known][:1]
            return
        if (error := done.exception()) is not None:
            self._require_not_restored(error, before, expected)
            return
        revision = done.result()
        self.require(self._data() == before, "the old data is changed")
        usable = bool(expected) and revision.position == expected[0]
        self.require(usable or self.calls.is_down, f"{revision.position} instead of {expected}")
        self.coming = [known[revision.position]]
        self.counts["restores"] += 1
        if lost:
            group.give_up_after(given_up.sequence if given_up else 0)
            self._append([EpochStart("node-b", "process", forced=True)])
        self.files.kill()

    def _plan_a_fault_of_a_restore(self) -> None:
        fate = self.random.random()
        if self.healed:
            return
        if fate < 0.2:
            self.files.crash_in = self.random.randint(1, 100)
        elif fate < 0.3:
            self.files.fail_in, self.files.fails_on = 1, frozenset({"sync"})

    def _require_not_restored(
        self, error: BaseException, before: dict[str, bytes], expected: list[Position]
    ) -> None:
        self.tell(f"not restored: {error}")
        self.counts["restores refused"] += 1
        self.require(self._data() == before, "the old data is changed")
        match error:
            case DatabaseUnreachable():
                pass
            case SnapshotDamaged() if "under the application" in str(error):
                self.require(self.application == CHANGED, f"unfit: {error}")
                self.counts["restores refused for the application"] += 1
            case SnapshotDamaged():
                self.require(not expected or bool(self.files.fired), f"refused, but {expected}")
            case _:
                allowed = isinstance(error, DiskFailed | JournalDamaged) and self.files.fired
                self.require(bool(allowed), f"not restored: {error!r}")
                raise error

    def _expected(self, positions: Positions) -> list[Position]:
        """The positions of the revisions that can be restored, newest first."""
        if self.application == CHANGED:
            return []
        return self._sound(positions)

    def _sound(self, positions: Positions) -> list[Position]:
        rows = [self.store.rows[n] for n in self.store.visible if not self.store.is_damaged(n)]
        found = [(row.position, row.last_mark) for row in rows]
        return [one for one, mark in found if one and mark and positions.has_all(one, mark)]

    def _data(self) -> dict[str, bytes]:
        """The node's data, without what a restore or a snapshot stages beside it."""
        paths = [path for path in self.home.rglob("*") if path.is_file()]
        names = {path.relative_to(self.home).as_posix(): path for path in paths}
        staged = (".restoring", ".restored", ".snapshot", "checkpoints/.")
        return {n: path.read_bytes() for n, path in names.items() if not n.startswith(staged)}

    def _damage(self, node: Node) -> None:
        if (what := self.store.damage()) is not None:
            self.tell(f"damage the store: {what}")
            self.counts[f"damage: {what}"] += 1

    def _verify(self, node: Node) -> None:
        for number in self.store.visible:
            if self.calls.is_down or self.calls.failure_rate:
                return
            revision = next(one for one in self.store.revisions() if one.id == number)
            found = verify(self.store, revision, lambda _: None)
            self.require(bool(found) == self.store.is_damaged(number), f"{number}: {found}")

    def _lose_checkpoint(self, node: Node) -> None:
        """Delete the checkpoint, as an operator may, and bring the query's state back."""
        self._delete_checkpoint()
        self._mend_checkpoint(node)

    def _delete_checkpoint(self) -> None:
        """Like ``open_checkpoint``, rename it first, since half of a checkpoint would count as a
        whole one."""
        aside = self._checkpoint.with_name(f"{QUERY}.set-aside-0")
        with disk(self._checkpoint):
            if aside.exists():
                self.files.rmtree(aside)
            if self._checkpoint.exists():
                self.files.rename(self._checkpoint, aside)
                self.files.rmtree(aside)

    def _toggle(self, node: Node) -> None:
        self.calls.is_down = not self.calls.is_down
        self.calls.failure_rate = self.random.choice([0.0, 0.05, 0.3])

    # -- the end -----------------------------------------------------------------------------------

    def _require_restorable(self) -> None:
        """Without any more faults the node starts, and can restore its newest snapshot."""
        self.calls.is_down, self.calls.failure_rate, self.healed = False, 0.0, True
        node = self._start()
        assert node is not None
        self.calls.before_call = lambda: None
        self._mend_checkpoint(node)
        self._grow(node)
        for _ in range(20):
            # A refused restore names the damaged chunks, and the next snapshot replaces them.
            if not self.files.dead:
                self._take(node)
                self._restore(node)
        self.require(self.files.dead, "no snapshot can be restored any more")
        node.journal.close()
        self.end_process()
        self.start_process()
        node = self._start()
        assert node is not None
        lineage = f"{node.journal.journal_id}:{LINEAGE}"
        self.require(is_whole(self.places.checkpoints, QUERY, lineage), "the state is not whole")
        found = self._require_state(self.admitted)
        self.require(found == self.admitted, f"the state is after batch {found}")
        node.journal.close()
        self.end_process()

    def _positions(self) -> Positions:
        return Positions(Position(0, 0), _epochs(self.group.records))

    def _call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Future[Any] | None:
        """Wait for a call of the service; None if the process dies meanwhile."""
        done = self.loop.run(lambda: self.loop.create_task(call()))
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.wait_for(done.done)
        return None if self.files.dead or not done.done() else done


def _replayed(
    found: JournalBase | None, records: list[Record]
) -> tuple[object, pa.Table, Sequence[object]]:
    """What a start makes of a base and of the records after it.

    The state of the query is left out, because a base of a snapshot is ahead of its position.
    """
    journal, producers, offsets = (
        JournalState(_deployment(UNCHANGED)),
        ProducerTable(10, 8),
        OffsetTable(),
    )
    if found:
        journal.load_base(found.base)
        producers.load_base(found.producers)
        offsets.load_base(found.offsets)
    for record in records:
        journal.replay(record)
        if isinstance(record.body, Events):
            producers.apply(record.position, record.body)
            offsets.apply(record.body)
    base = replace(journal.as_base(), queries=())
    return base, producers.to_table(), offsets.to_rows()


def _epochs(records: list[Record]) -> tuple[Position, ...]:
    first: dict[int, Position] = {}
    for record in records:
        first.setdefault(record.position.epoch, record.position)
    return tuple(first.values())


def _version() -> QueryVersion:
    return QueryVersion(QUERY, "v1", Mark(QUERY, 0, 0))


def _deployment(application: str) -> Deployment:
    digest = "v1" if application == UNCHANGED else "v2"
    plan = QueryPlan(QUERY, digest, frozenset({"flights"}), (SINK,))
    return Deployment(application, (plan,), LIMITS, RestartPolicy())


def _facts(place: SnapshotPlace) -> Facts:
    queries = tuple(CapturedQuery(query, number, LINEAGE, "") for query, number in place.batches)
    return Facts(GROUP_ID, UNCHANGED, {}, queries)


def _objection(manifest: Manifest) -> None:
    return None


def _rows(group: Group, number: int) -> pa.Table:
    return pa.table({"n": list(group.states[number - 1][: number % 4 + 1])})


def _frames(path: Path) -> list[Record]:
    return list(read_records(path, 0, path.stat().st_size))
