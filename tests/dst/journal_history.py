"""A random history of one journal: appends, changes, faults of the disk, deaths and new starts.

Everything but the disk, the thread and the clock is the engine's own code. After each start the
journal must have what it reported as durable, and nothing that was never written. The high water
is kept beside the journal, by another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from ha_engine.core import HighWater
from ha_engine.errors import DiskFailed, ForeignJournal, JournalDamaged, UnknownJournalVersion
from ha_engine.journal import Journal, read_extent
from ha_engine.journal.inspection import newest_records, oldest_records, survey
from ha_engine.journal.reading import read_frames, read_records
from ha_engine.journal.record import decode
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.data_dir import DataDirectory
from ha_engine.types import (
    Application,
    Body,
    EpochStart,
    Events,
    Extent,
    Mark,
    Position,
    Published,
    Pulled,
    QueryVersion,
    Record,
    Skip,
)
from tests.dst.disk import Crashed, SimulatedFiles
from tests.dst.history import DiskHistory, Refused
from tests.dst.loop import Thread
from tests.journal.samples import events, mark

GROUP, GROUP_ID = "test", "7c0e"
LIVES = 12
REFUSALS = (JournalDamaged, UnknownJournalVersion, ForeignJournal)
BODIES: tuple[Body, ...] = (
    Published("delays", "table", 7),
    EpochStart("node-é", "process", forced=True),
    Application("ab" * 16, (QueryVersion("delays", "cd" * 16, Mark("delays", 4, 9), reset=True),)),
    Skip("delays", 5, "an operator", 'a "poisoned" row'),
    Events("storms", 2, 7, pulled=(Pulled("drop", '{"file":"é"}', 2, 1),)),
)


@dataclass
class Model:
    """What the data directory must have.

    ``records`` are all that were given to the journal, ``durable`` is the last that it must have,
    and it may have none before ``trimmed``. ``kept`` is the high water that was reported as kept,
    ``keeping`` the newest that a call was to keep. ``giving_up`` are the records of a truncation
    that may be incomplete, from the journal ``former_id``.
    """

    records: list[Record] = field(default_factory=list)
    durable: int = 0
    trimmed: int = 1
    kept: int = 0
    keeping: int = 0
    group_id: str | None = None
    journal_id: str | None = None
    giving_up: list[Record] = field(default_factory=list)
    former_id: str | None = None

    def copy(self) -> Model:
        other = copy(self)
        other.records = list(self.records)
        return other


@dataclass(frozen=True)
class Life:
    """The open data directory of one process."""

    data: DataDirectory
    journal: Journal
    storage: Thread

    def close(self) -> None:
        self.journal.close()
        self.data.close()


class JournalHistory(DiskHistory):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.home = self.disk.root / "data"
        self.segment_size = self.random.choice([600, 1500, 4000])
        self.model = Model()
        self.images: list[tuple[object, Model]] = []

    def play(self) -> None:
        for _ in range(LIVES):
            self.plan_a_fault(0.25, 14)
            self.plan_a_misread(0.15, 60)
            if (life := self._open()) is not None:
                self.files.plan_no_fault()
                self._live(life)
                life.close()
            self.end_process()
            self._fall()
            self.start_process()
        life = self._open()
        assert life is not None
        self._survey(life)
        life.close()
        self.end_process()

    def _fall(self) -> None:
        """Perhaps let the host lose its power too, or its disk go back in time."""
        fate = self.random.random()
        if fate < 0.5:
            self.tell("power is lost")
            self.disk.lose_power()
        elif fate < 0.55 and self.images:
            self.tell("the disk goes back in time")
            image, model = self.random.choice(self.images)
            self.disk.go_back(image)
            self.model = model.copy()
            self.counts["disks back in time"] += 1

    # -- what the disk must have -------------------------------------------------------------------

    def _open(self) -> Life | None:
        self.files.hang_in = 0
        faulty = self.faulty
        journal: Journal | None = None
        try:
            data = DataDirectory(self.home, "process", self.files)
        except (Crashed, DiskFailed) as error:
            self._note_no_start(error, faulty)
            return None
        try:
            kept, journal = data.high_water().epoch, self._journal()
            self._check(journal)
        except (Crashed, DiskFailed, *REFUSALS) as error:
            data.close()
            if journal is not None:
                journal.close()
            if isinstance(error, Crashed | DiskFailed) or "misread" in self.files.fired:
                self._note_no_start(error, faulty)
                return None
            # A record that never became durable may be damaged before one that survived. Nothing
            # distinguishes it from a durable record that was damaged later.
            self.require(self.disk.has_holes, f"the journal is refused: {error}")
            self.counts["refusals of holes"] += 1
            raise Refused(str(error)) from error
        self.disk.has_holes = False
        model = self.model
        self.require(model.kept <= kept <= model.keeping, f"the high water is {kept}")
        model.kept = model.keeping = kept
        return Life(data, journal, Thread(self.loop))

    def _journal(self) -> Journal:
        place, size = self.home / "journal", self.segment_size
        return Journal.open(place, group=GROUP, segment_size=size, files=self.files)

    def _note_no_start(self, error: BaseException, faulty: bool) -> None:
        if isinstance(error, Crashed):
            self.tell("dies at its start")
        else:
            self.require(faulty or self.files.fired, f"the journal is not opened: {error}")
            self.tell(f"fails at its start: {error}")

    def _check(self, journal: Journal) -> None:
        model, last = self.model, journal.last.sequence
        self.tell(f"opened: {journal.first} to {journal.last}, torn: {journal.torn}")
        self.require(last >= model.durable, f"{last} is the last, {model.durable} was durable")
        self.require(last <= len(model.records), "records appeared from nowhere")
        self.require(journal.first <= model.trimmed, f"trimmed up to {journal.first}")
        expected = model.records[journal.first - 1 : last]
        self.require(list(journal.read(journal.first)) == expected, "other records")
        self.require(journal.epochs == _epochs(model.records[:last]), f"epochs {journal.epochs}")
        if model.group_id is not None:
            self.require(journal.group_id == model.group_id, f"group id {journal.group_id}")
        self._check_id(journal, last)
        model.records = model.records[:last]
        model.durable, model.journal_id = last, journal.journal_id
        model.giving_up, model.former_id = [], None
        self.counts["torn tails"] += journal.torn is not None

    def _check_id(self, journal: Journal, last: int) -> None:
        model = self.model
        lost = [record for record in model.giving_up if record.position.sequence > last]
        if lost:
            self.require(journal.journal_id != model.former_id, "cut under its former id")
            kept = [_frames(path) for path in sorted((self.home / "journal").glob("*.frames"))]
            self.require(model.giving_up in kept, "records were given up but not set aside")
            self.counts["records set aside"] += len(lost)
        elif model.journal_id is not None and not model.giving_up:
            self.require(journal.journal_id == model.journal_id, "another journal id")

    def _survey(self, life: Life) -> None:
        """Inspect the journal like the command that shows it, while the node has it open."""
        journal, model = life.journal, self.model
        report = survey(self.home / "journal")
        self.require(report.damage is None and report.torn is None, f"found {report}")
        expected = model.records[journal.first - 1 :]
        self.require(report.records == len(expected), f"{report.records} records are shown")
        self.require(report.epochs == journal.epochs, f"epochs {report.epochs} are shown")
        bare = [replace(record, payload=b"") for record in expected]
        self.require(oldest_records(report, 5) == bare[:5], "other oldest records are shown")
        self.require(newest_records(report, 5) == bare[-5:], "other newest records are shown")

    # -- one life ----------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        writer = self.loop.run(
            lambda: JournalWriter(
                life.journal, self._durable, self._failed, self._stuck, thread=Thread(self.loop)
            )
        )
        self.plan_a_fault(0.4, 40)
        self.plan_a_misread(0.2, 40)
        deeds = {
            self._append: 12,
            self._trim: 3,
            self._bind: 1,
            self._cut: 3,
            self._read: 3,
            self._keep: 2,
            self._keep_image: 1,
        }
        count = self.random.randint(1, 25)
        for deed in self.random.choices([*deeds], [*deeds.values()], k=count):
            if self.over:
                break
            deed(life, writer)
            self.wait(self.random.uniform(0, 0.01))
        if self.failure is not None:
            self._require_no_more_writes(writer)
        elif not self.over and self.random.random() < 0.5:
            self._close(writer)

    def _durable(self, sequence: int) -> None:
        self.tell(f"durable: {sequence}")
        self.model.durable = sequence

    def _failed(self, error: BaseException) -> None:
        self.tell(f"failed: {error}")
        self.failure = error

    def _stuck(self) -> None:
        self.tell("the disk does not answer; the process ends")
        self.counts["ends of a stuck process"] += 1
        self.files.kill()

    def _require_no_more_writes(self, writer: JournalWriter) -> None:
        record = replace(mark(len(self.model.records) + 1), position=Position(99, 1))
        try:
            self.loop.run(lambda: writer.append([record]))
        except DiskFailed:
            pass
        else:
            self.require(False, "a failed writer takes records")
        self.wait(60)
        again = [step for step in self.files.trace if "journal" in step]
        self.require(not again, "the journal is changed after a failure")
        self.counts["failures survived"] += 1

    def _close(self, writer: JournalWriter) -> None:
        closed = self.loop.run(lambda: self.loop.create_task(writer.close()))
        self.wait_for(closed.done)
        if self.over:
            return
        self.tell("closed")
        everything = len(self.model.records)
        self.require(self.model.durable == everything, "closed before all is durable")
        self._flip()

    # -- deeds -------------------------------------------------------------------------------------

    def _append(self, life: Life, writer: JournalWriter) -> None:
        records, random = self.model.records, self.random
        epoch = records[-1].position.epoch if records else 1
        fresh = []
        for sequence in range(len(records) + 1, len(records) + 1 + random.randint(1, 8)):
            epoch += random.random() < 0.05
            size = random.choice([0, 20, 100, 400, 1100])
            one = events(sequence, epoch=epoch, size=size) if size else mark(sequence, epoch=epoch)
            if random.random() < 0.2:
                one = replace(one, body=random.choice(BODIES))
            fresh.append(replace(one, committed=random.randrange(sequence)))
        records += fresh
        self.tell(f"append {fresh[0].position} to {fresh[-1].position}")
        self.loop.run(lambda: writer.append(fresh))

    def _trim(self, life: Life, writer: JournalWriter) -> None:
        before = self.random.randint(1, max(1, self.model.durable))
        self.model.trimmed = max(self.model.trimmed, before)
        self.tell(f"trim before {before}")
        self._exclusive(writer, lambda: life.journal.trim_before(before))

    def _bind(self, life: Life, writer: JournalWriter) -> None:
        def bound(done: asyncio.Future[object]) -> None:
            if done.exception() is None:
                self.model.group_id = GROUP_ID

        self.tell("bind to the group")
        done = self._exclusive(writer, lambda: life.journal.bind_group(GROUP_ID))
        done.add_done_callback(bound)

    def _cut(self, life: Life, writer: JournalWriter) -> None:
        """Truncate, or give up committed records; like the node, append nothing meanwhile."""
        model, journal = self.model, life.journal
        self.wait_for(lambda: model.durable == len(model.records))
        if self.over or not model.records:
            return
        least = max(journal.first, model.trimmed) - 1
        after = self.random.randint(min(least, len(model.records)), len(model.records))
        gives_up = self.random.random() < 0.5 and after < len(model.records)
        model.durable = after
        self.tell(f"{'give up' if gives_up else 'truncate'} after {after}")
        if gives_up:
            model.giving_up, model.former_id = model.records[after:], journal.journal_id
            done = self._exclusive(writer, lambda: journal.give_up_after(after))
        else:
            done = self._exclusive(writer, lambda: journal.truncate_after(after))
        self.wait_for(done.done)
        if self.over:
            return
        if (error := done.exception()) is not None:
            self._require_cause(error)
            self.wait_for(lambda: self.over)
            return
        self.require(journal.last.sequence == after, "cut elsewhere")
        try:
            self._check(journal)
        except (DiskFailed, JournalDamaged) as error:
            self._require_cause(error)
            self.files.kill()

    def _read(self, life: Life, writer: JournalWriter) -> None:
        journal, last = life.journal, life.journal.last.sequence
        if last < journal.first:
            return
        first = self.random.randint(journal.first, last)
        until = self.random.randint(first, last)
        records = self.model.records[first - 1 : until]
        way = self.random.choice([_extents, _stream, _without_payloads, _frame_by_frame])
        try:
            found, expected = way(journal, records, self.files)
        except (DiskFailed, JournalDamaged) as error:
            self._require_cause(error)
            return
        self.require(found == expected, f"read {first} to {until}")

    def _keep(self, life: Life, writer: JournalWriter) -> None:
        """Keep a high water, in another thread than the journal's."""
        model = self.model
        model.keeping += 1
        high_water = HighWater(model.keeping, 1)

        def kept(done: asyncio.Future[None]) -> None:
            if done.exception() is None:
                model.kept = max(model.kept, high_water.epoch)

        self.tell(f"keep the high water {high_water.epoch}")
        call = self.loop.run_in_executor(life.storage, life.data.keep, high_water)
        call.add_done_callback(kept)

    def _keep_image(self, life: Life, writer: JournalWriter) -> None:
        self.images.append((self.disk.image(), self.model.copy()))

    def _require_cause(self, error: BaseException) -> None:
        """Require a fault of the disk that explains the error of a read or a change.

        The writer's thread may have failed, and the loop be about to learn of it.
        """
        damaged = isinstance(error, JournalDamaged)
        wanted = {"misread"} if damaged else {"failed", "unreadable"}
        self.require(bool(self.files.fired & wanted), f"not read: {error}")
        self.tell(f"not read: {error}")

    def _exclusive(
        self, writer: JournalWriter, call: Callable[[], object]
    ) -> asyncio.Future[object]:
        done = self.loop.run(lambda: writer.run_exclusive(call))
        done.add_done_callback(lambda done: done.exception())
        return done

    # -- one flipped bit ---------------------------------------------------------------------------

    def _flip(self) -> None:
        """Flip one bit of the closed journal: the next start refuses it, or sees no difference."""
        place = self.home / "journal"
        path = self.random.choice([*sorted(place.glob("*.journal")), place / "identity.json"])
        size, image = path.stat().st_size, self.disk.image()
        offset, bit = self.random.randrange(size), self.random.randrange(8)
        self.disk.full = False
        self.tell(f"flip bit {bit} of byte {offset} of {path.name}")
        self.disk.flip(path, offset, bit)
        model = self.model.copy()
        self.files.plan_no_fault()
        try:
            journal = self._journal()
            self._check(journal)
            journal.close()
            self.counts["flips without effect"] += 1
        except REFUSALS as error:
            self.tell(f"refused: {error}")
        self.disk.go_back(image)
        self.model = model


def _extents(
    journal: Journal, records: list[Record], files: SimulatedFiles
) -> tuple[list[Record], list[Record]]:
    extents = _located(journal, records)
    return [one for extent in extents for one in read_extent(extent, files=files)], records


def _stream(
    journal: Journal, records: list[Record], files: SimulatedFiles
) -> tuple[list[Record], list[Record]]:
    extents, stream = _located(journal, records), "flights"
    found = [one for extent in extents for one in read_extent(extent, stream=stream, files=files)]
    of_stream = lambda body: isinstance(body, Events) and body.stream == stream  # noqa: E731
    return found, [record for record in records if of_stream(record.body)]


def _without_payloads(
    journal: Journal, records: list[Record], files: SimulatedFiles
) -> tuple[list[Record], list[Record]]:
    first, last = records[0].position.sequence, records[-1].position.sequence
    found = list(journal.read(first, last, payloads=False))
    return found, [replace(record, payload=b"") for record in records]


def _frame_by_frame(
    journal: Journal, records: list[Record], files: SimulatedFiles
) -> tuple[list[Record], list[Record]]:
    """Read some frames at a time, like the stream to a peer."""
    found = list[Record]()
    for extent in _located(journal, records):
        while extent.length:
            frames = read_frames(extent, 700, files)
            found += [decode(frame.head + frame.payload) for frame in frames]
            done = sum(frame.length for frame in frames)
            extent = Extent(extent.path, extent.offset + done, extent.length - done)
    return found, records


def _located(journal: Journal, records: list[Record]) -> list[Extent]:
    return journal.locate(records[0].position.sequence, records[-1].position.sequence)


def _frames(path: Path) -> list[Record]:
    return list(read_records(path, 0, path.stat().st_size))


def _epochs(records: list[Record]) -> tuple[Position, ...]:
    first: dict[int, Position] = {}
    for record in records:
        first.setdefault(record.position.epoch, record.position)
    return tuple(first.values())
