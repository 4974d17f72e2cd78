"""A random history of one node's outbox: batches written, admitted, repeated and trimmed.

An admitted batch survives every death and loss of power until it is trimmed, and is never replaced.
The query process may write a batch again, with the same rows or, against its promise, with others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from ha_engine.errors import DiskFailed, OutboxDamaged
from ha_engine.outbox import Admission, Outbox
from ha_engine.outbox.batch_file import digest_of_table, read_batch_file, write_batch_file
from ha_engine.outbox.inspection import survey
from ha_engine.system.disk import disk
from ha_engine.system.files import make_directory
from tests.dst.disk import Crashed
from tests.dst.history import DiskHistory, Refused

LIVES = 10
MISREAD = {"misread", "unreadable"}
QUERIES = ("delays", "storms")
_COUNTS = pa.map_(pa.string(), pa.int64())


@dataclass
class Model:
    """The batches of one query: those up to ``admitted`` were reported, those up to ``begun`` may
    be there, and those up to ``trimmed`` may be gone."""

    admitted: int = 0
    begun: int = 0
    trimmed: int = 0
    # A drop of the query may be incomplete.
    dropping: bool = False
    # What Spark computes for each batch, also after it lost the batch.
    rows: dict[int, pa.Table] = field(default_factory=dict)


class OutboxHistory(DiskHistory):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.directory = self.disk.root / "outbox"
        self.models = {query: Model() for query in QUERIES}

    def play(self) -> None:
        for life in range(LIVES):
            self.plan_a_fault(0.2, 10)
            self.plan_a_misread(0.1, 20)
            self.files.hang_in = 0
            faulty = self.faulty
            try:
                outbox = self._open()
                self.files.plan_no_fault()
                self.plan_a_fault(0.5, 40)
                self.plan_a_misread(0.2, 10)
                self.files.hang_in = 0
                faulty = self.faulty
                for _ in range(self.random.randint(1, 20)):
                    self._deed(outbox, f"incarnation-{life}")
            except Crashed:
                self.tell("dies")
            except DiskFailed as error:
                self.require(faulty, f"the disk did not fail: {error}")
                self.tell(f"fails: {error}")
            except OutboxDamaged as error:
                self.require(bool(self.files.fired & MISREAD), f"not read: {error}")
                self.tell(f"not read: {error}")
            self.end_process()
            if self.random.random() < 0.5:
                self.tell("power is lost")
                self.disk.lose_power()
            self.start_process()
        outbox = self._open()
        self._survey(outbox)
        self._flip(outbox)

    # -- what an outbox must have ------------------------------------------------------------------

    def _open(self) -> Outbox:
        try:
            with disk(self.disk.root):
                self.files.fsync_directory(self.disk.root)  # like DataDirectory
            outbox = Outbox.open(self.directory, files=self.files)
            for query in QUERIES:
                self._check(outbox, query)
        except OutboxDamaged as error:
            if self.files.fired & MISREAD:
                raise
            self.require(self.disk.has_holes, f"the outbox is refused: {error}")
            raise Refused(str(error)) from error
        self.disk.has_holes = False
        self.tell(f"opened: {[(outbox.floor(q), outbox.last_admitted(q)) for q in QUERIES]}")
        return outbox

    def _check(self, outbox: Outbox, query: str) -> None:
        model, first = self.models[query], outbox.first(query)
        floor = outbox.trimmed_through(query) if first is None else first - 1
        outbox.set_outbox_floor(query, floor)
        last = outbox.last_admitted(query)
        if model.dropping and last == 0:
            self.models[query] = Model()
            return
        model.dropping = False
        self.require(floor <= model.trimmed, f"{query}: batch {floor} is gone")
        reached = last >= model.admitted or model.admitted <= model.trimmed
        self.require(reached, f"{query}: batch {model.admitted} was admitted, {last} is the last")
        self.require(last <= model.begun, f"{query}: batch {last} appeared from nowhere")
        for number in range(floor + 1, last + 1):
            self._check_batch(outbox, query, number)
        # Spark's checkpoint is never newer than the outbox, so Spark runs missing batches again.
        model.admitted = model.begun = last

    def _check_batch(self, outbox: Outbox, query: str, number: int) -> None:
        batch, rows = outbox.batch(query, number), self.models[query].rows[number]
        self.require(batch is not None, f"{query}: batch {number} is missing")
        assert batch is not None
        found = read_batch_file(batch.path, self.files)
        self.require(found.equals(rows), f"{query}: {number} has other rows")
        digest = outbox.digest(query, number)
        self.require(digest in (None, digest_of_table(rows)), f"{query}: {number} has {digest}")

    def _survey(self, outbox: Outbox) -> None:
        """Inspect the outbox like the command that shows it, while the node has it open."""
        report, backlogs = survey(self.directory), [outbox.backlog(query) for query in QUERIES]
        self.require(report.damage == (), f"found {report.damage}")
        found = (report.batches, report.bytes)
        self.require(found == tuple(map(sum, zip(*backlogs, strict=True))), f"{found} are shown")

    # -- deeds -------------------------------------------------------------------------------------

    def _deed(self, outbox: Outbox, incarnation: str) -> None:
        query = self.random.choice(QUERIES)
        deeds: list[Callable[[Outbox, str, str], None]] = [
            self._admit,
            self._repeat,
            self._trim,
            self._drop,
            self._restore,
        ]
        (deed,) = self.random.choices(deeds, [24, 8, 8, 1, 2])
        deed(outbox, query, incarnation)

    def _admit(self, outbox: Outbox, query: str, incarnation: str) -> None:
        model = self.models[query]
        number = model.admitted + 1
        model.rows.setdefault(number, self._rows(number))
        model.begun = number
        file = self._write(query, number, model.rows[number], incarnation)
        answer = self._ask(outbox, query, number, file, None)
        self.require(answer is Admission.ADMITTED, f"{query}: batch {number}: {answer}")
        model.admitted = number
        if self.random.random() < 0.7:
            outbox.report_digest(query, number, digest_of_table(model.rows[number]))

    def _repeat(self, outbox: Outbox, query: str, incarnation: str) -> None:
        """A query process that lost its checkpoint runs a batch again."""
        model = self.models[query]
        if model.admitted <= outbox.floor(query):
            return
        number = self.random.randint(outbox.floor(query) + 1, model.admitted)
        same = self.random.random() < 0.7
        rows = model.rows[number] if same else self._rows(number)
        file = self._write(query, number, rows, incarnation)
        digest = digest_of_table(rows)
        answer = self._ask(outbox, query, number, file, None)
        if answer is Admission.NEED_DIGEST:
            answer = self._ask(outbox, query, number, file, digest)
        equal = digest == digest_of_table(model.rows[number])
        wanted = Admission.DONE if equal else Admission.MISMATCH
        self.require(answer is wanted, f"{query}: batch {number} again: {answer}")
        self.counts[f"repeated: {answer.value}"] += 1
        self._check_batch(outbox, query, number)

    def _trim(self, outbox: Outbox, query: str, incarnation: str) -> None:
        model = self.models[query]
        through = self.random.randint(0, model.admitted)
        model.trimmed = max(model.trimmed, through)
        self.tell(f"{query}: trim through {through}")
        outbox.trim(query, through)
        self.counts["trims"] += 1

    def _drop(self, outbox: Outbox, query: str, incarnation: str) -> None:
        """The query begins with empty state, or its records were given up."""
        model = self.models[query]
        model.dropping = True
        self.tell(f"{query}: drop")
        outbox.drop(query)
        self.counts["drops"] += 1
        self.models[query] = Model()

    def _restore(self, outbox: Outbox, query: str, incarnation: str) -> None:
        """The state of the query comes from a snapshot, which may be ahead of the outbox."""
        model, coming = self.models[query], self.directory.parent / "coming"
        last = model.admitted + self.random.randint(1, 3)
        left = self.random.randint(outbox.floor(query), last)
        with disk(coming):
            make_directory(coming, files=self.files, durable=False)
        for number in range(left + 1, last + 1):
            rows = model.rows.setdefault(number, self._rows(number))
            path = coming / f"{number}.arrow"
            write_batch_file(path, rows, query=query, number=number, files=self.files)
        with disk(coming):
            self.files.sync(coming)
        model.trimmed, model.begun = max(model.trimmed, left), last
        self.tell(f"{query}: restore the batches {left + 1} to {last} of a snapshot")
        files = [coming / f"{number}.arrow" for number in range(left + 1, last + 1)]
        restored = outbox.restore(query, left, files)
        numbers = [int(batch.path.stem) for batch in restored]
        expected = list(range(max(left, model.admitted) + 1, last + 1))
        self.require(numbers == expected, f"{query}: restored {numbers}, not {expected}")
        model.admitted = last
        self.counts["batches restored"] += len(restored)

    def _write(self, query: str, number: int, rows: pa.Table, incarnation: str) -> str:
        pending = self.directory / query / "pending"
        self._make_pending(pending)
        path = pending / f"{number}.{incarnation}.arrow"
        write_batch_file(path, rows, query=query, number=number, files=self.files)
        return str(path.relative_to(self.directory))

    def _make_pending(self, pending: Path) -> None:
        """Like the query process, which makes nothing durable."""
        with disk(pending):
            for path in (pending.parent, pending):
                if not path.exists():
                    self.files.mkdir(path, 0o700)

    def _ask(
        self, outbox: Outbox, query: str, number: int, file: str, digest: str | None
    ) -> Admission:
        path = self.directory / file
        size = path.stat().st_size
        answer = outbox.admit(query, number, file, number, size, digest)
        self.tell(f"{query}: batch {number} is {answer.value}")
        return answer

    def _rows(self, number: int) -> pa.Table:
        numbers = [self.random.randrange(100) for _ in range(number % 4 + 1)]
        return pa.table({"n": numbers}) if number % 6 else _of_many_types(numbers)

    def _flip(self, outbox: Outbox) -> None:
        """Flip one bit of a batch: the next start refuses it."""
        batches = [
            batch
            for query in QUERIES
            for number in range(outbox.floor(query) + 1, outbox.last_admitted(query) + 1)
            if (batch := outbox.batch(query, number)) is not None
        ]
        if not batches:
            return
        path = self.random.choice(batches).path
        offset, bit = self.random.randrange(path.stat().st_size), self.random.randrange(8)
        self.tell(f"flip bit {bit} of byte {offset} of {path}")
        self.disk.flip(path, offset, bit)
        try:
            again = Outbox.open(self.directory, files=self.files)
            for query in QUERIES:
                self._check(again, query)
        except OutboxDamaged as error:
            self.tell(f"refused: {error}")


def _of_many_types(numbers: list[int]) -> pa.Table:
    """Make a row of each number, with a column of each kind that the canonical form treats apart.

    Python compares the rows of a table too, so no value is NaN.
    """
    moments = [datetime(2013, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in numbers]
    columns = {
        "n": pa.array(numbers),
        "ratio": pa.array([n / 7 if n % 3 else None for n in numbers], pa.float64()),
        "even": pa.array([n % 2 == 0 for n in numbers]),
        "name": pa.array([str(n) for n in numbers]).dictionary_encode(),
        "raw": pa.array([bytes([n]) for n in numbers]),
        "at": pa.array(moments),
        "day": pa.array([moment.date() for moment in moments]),
        "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
        "place": pa.array([{"x": n, "y": None} for n in numbers]),
        "counts": pa.array([[("b", n), ("a", None)] for n in numbers], _COUNTS),
        "parts": pa.array([[_part(n, at)] for n, at in zip(numbers, moments, strict=True)]),
    }
    return pa.table(columns)


def _part(n: int, at: datetime) -> dict[str, Any]:
    return {
        "ratio": n / 7,
        "even": n % 2 == 0,
        "raw": bytes([n]),
        "at": at,
        "since": timedelta(minutes=n),
        "price": Decimal(n) / 4,
        "names": [str(n), None],
    }
