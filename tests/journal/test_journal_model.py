"""The journal against a plain list, through every order of operations that Hypothesis finds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ha_engine.journal import Journal, read_extent, reading
from ha_engine.journal.inspection import survey
from ha_engine.types import Events, Position, Record
from tests.journal.samples import events, mark

SEGMENT_SIZE = 1500


class JournalAgainstList(RuleBasedStateMachine):
    """``history`` is the model; records before ``floor`` may be trimmed."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="ha-engine-test-"))
        self.directory = self.base / "journal"
        # Segments of this small size would have no second index entry.
        self.index_spacing, reading.INDEX_EVERY_BYTES = reading.INDEX_EVERY_BYTES, 150
        self.history: list[Record] = []
        self.floor = 1
        self.journal = self._open()

    def teardown(self) -> None:
        self.journal.close()
        reading.INDEX_EVERY_BYTES = self.index_spacing
        shutil.rmtree(self.base)

    def _open(self) -> Journal:
        return Journal.open(self.directory, group="test", segment_size=SEGMENT_SIZE)

    @rule(sizes=st.lists(st.integers(0, 400), max_size=8), new_epoch=st.booleans())
    def append(self, sizes: list[int], new_epoch: bool) -> None:
        epoch = (self.history[-1].position.epoch if self.history else 1) + new_epoch
        first = len(self.history) + 1
        fresh = [
            events(first + n, epoch=epoch, size=size, stream="ab"[size % 2])
            if size
            else mark(first + n, epoch=epoch)
            for n, size in enumerate(sizes)
        ]
        self.journal.append(fresh)
        self.history += fresh

    @rule()
    def sync(self) -> None:
        self.journal.sync()

    @rule()
    def reopen(self) -> None:
        journal_id = self.journal.journal_id
        self.journal.close()
        self.journal = self._open()
        assert (self.journal.torn, self.journal.journal_id) == (None, journal_id)

    @rule()
    def retire(self) -> None:
        before = self.journal.journal_id
        assert self.journal.retire() == self.journal.journal_id != before

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(self.journal.first - 1, len(self.history)))
        self.journal.truncate_after(sequence)
        del self.history[sequence:]
        self.floor = min(self.floor, sequence + 1)

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(1, len(self.history) + 1))
        self.journal.trim_before(sequence)
        self.floor = max(self.floor, sequence)
        spared = list(self.journal.locate(self.journal.first, sequence - 1))
        assert len(spared) <= 1, "a whole segment before the trimmed sequence was kept"

    @rule(data=st.data())
    def read_a_range(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.journal.first, len(self.history) + 1))
        last = data.draw(st.integers(first - 1, len(self.history) + 3))
        expected = self.history[first - 1 : last]
        assert list(self.journal.read(first, last)) == expected
        located = [one for e in self.journal.locate(first, last) for one in read_extent(e)]
        assert located == expected
        bare = [Record(one.position, one.committed, one.body) for one in expected]
        assert list(self.journal.read(first, last, payloads=False)) == bare
        of_a = [one for e in self.journal.locate(first, last) for one in read_extent(e, stream="a")]
        assert of_a == [
            one for one in expected if isinstance(one.body, Events) and one.body.stream == "a"
        ]

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        journal = self.journal
        assert journal.first <= self.floor
        assert list(journal.read(journal.first)) == self.history[journal.first - 1 :]
        last = self.history[-1].position if self.history else Position(0, 0)
        assert journal.last == last
        assert journal.epochs == self._epochs()

    @invariant()
    def passes_its_own_verification(self) -> None:
        report = survey(self.directory)
        assert (report.torn, report.damage) == (None, None)
        assert report.records == len(self.history) - self.journal.first + 1
        assert report.epochs == self.journal.epochs

    def _epochs(self) -> tuple[Position, ...]:
        starts: list[Position] = []
        for record in self.history:
            if not starts or record.position.epoch > starts[-1].epoch:
                starts.append(record.position)
        return tuple(starts)


JournalAgainstList.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestJournalAgainstList = JournalAgainstList.TestCase
