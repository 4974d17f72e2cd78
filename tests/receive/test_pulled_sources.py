"""Sources give every row once and in order, however often they are stopped."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.config import ReceiveConfig
from ha_engine.errors import (
    ApplicationError,
    Backpressure,
    NotActive,
    OffsetMoved,
    SourceUnavailable,
)
from ha_engine.plugins import Backlog, SourceBatch, source_kind
from ha_engine.query.application import load_application
from ha_engine.receive.offsets import Pull, SourceOffset
from ha_engine.receive.pull.puller import ROWS_MAX, SourceState
from ha_engine.receive.receivers import Receivers
from ha_engine.testing import SourceContract
from ha_engine.types import Events, Position, Pulled, Record
from tests.receive.pulling import SCHEMA, Make, Pulling
from tests.waiting import async_wait_until, async_watch

pytestmark = pytest.mark.usefixtures("plugin_example")
WITHIN = 60


class TestTheExample(SourceContract):
    @pytest.fixture(autouse=True)
    def _kind(self) -> None:
        type(self).kind = source_kind("tail")
        (self.home / "grows").touch()

    def options(self) -> dict[str, Any]:
        return {"file": str(self.home / "grows")}

    def put(self, rows: list[dict[str, Any]]) -> None:
        with (self.home / "grows").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


# -- a source that the tests control ---------------------------------------------------------------


class Numbers:
    """Rows 0, 1, ... ``end``; the offset is the next row. ``bad`` are invalid rows."""

    guarantee = "exactly once"

    def __init__(self, end: int, piece: int = 7, bad: frozenset[int] = frozenset()) -> None:
        self.end, self.piece, self.bad = end, piece, bad
        self.next, self.opened, self.reads = 0, list[str | None](), 0
        self.fails: Exception | None = None
        self.calls: list[str] = []

    def open(self, offset: str | None) -> None:
        self.calls.append("open")
        self.opened.append(offset)
        self.next = int(offset or 0)

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        self.reads += 1
        self.calls.append("read")
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        first, count = self.next, min(self.piece, rows_max, self.end - self.next)
        if not count:
            return None
        self.next += count
        rows = [self._row(number) for number in range(first, self.next)]
        left = Backlog(events=self.end - first, seconds=1.5)
        return SourceBatch(str(self.next), rows, (), lambda n: f"row {first + n}", left)

    def _row(self, number: int) -> bytes:
        return b'{"id": "?"}' if number in self.bad else b'{"id": %d}' % number

    def close(self) -> None:
        self.calls.append("close")


class Held(Numbers):
    """A source whose first read returns when the test releases it."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.begun, self.let_go = threading.Event(), threading.Event()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if not self.begun.is_set():
            self.begun.set()
            self.let_go.wait(WITHIN)
        return super().read(rows_max, seconds)


def always(source: Any) -> Make:
    return lambda place: source


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Pulling] = []

    def start(config: ReceiveConfig | None = None, **sources: Any) -> Pulling:
        makes = {name: always(source) for name, source in sources.items()}
        made.append(Pulling(tmp_path, config, **makes))
        made[-1].receivers.open()
        return made[-1]

    yield start
    for one in made:
        await one.close()


async def test_a_source_is_read_into_the_journal_with_its_offset(started: Any) -> None:
    node = started(numbers=Numbers(50))
    await async_wait_until(lambda: node.ids() == list(range(50)), within=WITHIN)
    await async_wait_until(lambda: node.status("numbers").state is SourceState.IDLE, within=WITHIN)
    assert node.status("numbers").known == SourceOffset("50", 50, 0, 8)
    assert node.status("numbers").backlog == Backlog(events=0, seconds=0.0)


async def test_batch_without_rows_and_without_a_new_offset_writes_no_record(started: Any) -> None:
    class Chatty(Numbers):
        def read(self, rows_max: int, seconds: float) -> SourceBatch:
            return super().read(rows_max, seconds) or SourceBatch(str(self.next))

    node = started(numbers=(source := Chatty(5)))
    await async_wait_until(lambda: source.reads > 5, within=WITHIN)
    assert node.status("numbers").known == SourceOffset("5", 5, 0, 1)


async def test_undecodable_error_of_a_source_is_shown_escaped(started: Any) -> None:
    class Fails(Numbers):
        def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
            raise SourceUnavailable("\udcff.csv " + "x" * 5_000)

    node, told = started(numbers=Fails(5)), list[str]()

    def failed() -> bool:
        told.append(node.status("numbers").error or "")
        return bool(told[-1])

    await async_wait_until(failed, within=WITHIN)
    assert told[-1].encode().startswith(b"\\udcff.csv xxx")
    assert len(told[-1]) < 2_000


async def test_next_process_reads_on_from_the_offset_in_the_journal(tmp_path: Path) -> None:
    """The process may end any number of times, at any point between read and commit."""
    chance, lives = random.Random(3), 15
    for _ in range(lives):
        node = Pulling(tmp_path, source=always(Numbers(1 << 30, piece=3)))
        node.receivers.open()
        # A random delay, not a wait: it chooses the point at which the process ends.
        await asyncio.sleep(chance.uniform(0, 0.03))
        await node.close()
    node = Pulling(tmp_path, source=always(Numbers(5_000, piece=500)))
    node.receivers.open()
    await async_wait_until(lambda: node.ids() == list(range(5_000)), within=WITHIN)
    await node.close()


async def test_source_stops_with_a_closed_gate_and_continues_with_an_open_one(started: Any) -> None:
    source = Numbers(1 << 30, piece=2)
    node = started(numbers=source)
    for _ in range(5):
        before = len(node.ids())
        await async_wait_until(lambda before=before: len(node.ids()) > before + 4, within=WITHIN)
        node.receivers.close("the lease was not renewed")
        await async_wait_until(lambda: node.status("numbers").state is SourceState.STOPPED)
        reads = source.reads

        def reads_no_more(reads: int = reads) -> None:
            assert source.reads == reads

        await async_watch(reads_no_more, seconds=0.05)
        node.receivers.open()
    await node.receivers.stop()
    assert node.ids() == list(range(len(node.ids())))


async def test_rows_read_and_never_journalled_are_read_again(started: Any) -> None:
    """The fate of the offered record is unknown: only the offset in the journal counts."""
    source = Numbers(20, piece=5)
    node = started(numbers=source)
    await async_wait_until(lambda: node.status("numbers").state is SourceState.IDLE, within=WITHIN)
    source.end = 40
    node.log.hold()
    await async_wait_until(lambda: len(node.ids()) == 25, within=WITHIN)
    node.log.refuse(NotActive("lost"))
    node.log.release()
    await async_wait_until(lambda: len(node.ids()) == 40, within=WITHIN)
    assert node.ids() == list(range(40))
    assert source.opened == [None, "25"]


async def test_gate_refuses_rows_that_do_not_follow_the_offset(started: Any) -> None:
    """The caller may be a late thread, or a second reader of the same source."""
    node = started()
    batch = pa.RecordBatch.from_pylist([{"id": 1}], schema=SCHEMA)
    first = node.gate.submit("events", batch, None, Pull("drop", None, "1"))
    twin = node.gate.submit("events", batch, None, Pull("drop", None, "1"))
    answers = await asyncio.gather(first, twin, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Receipt", "OffsetMoved"]
    with pytest.raises(
        OffsetMoved, match="read after offset None, but the journal has its rows up to 1"
    ):
        await node.gate.submit("events", batch, None, Pull("drop", None, "2"))
    await node.gate.submit("events", batch, None, Pull("drop", "1", "2"))
    await node.gate.submit("other", batch, None, Pull("drop", None, "1"))
    assert len(node.ids()) == 2


async def test_source_pauses_during_back_pressure_and_loses_no_row(started: Any) -> None:
    source = Numbers(1 << 30, piece=5)
    node = started(numbers=source)
    await async_wait_until(lambda: len(node.ids()) > 10, within=WITHIN)
    node.backlog.refused = Backpressure("the queries are behind", 0.02)
    await async_wait_until(lambda: node.status("numbers").state is SourceState.PAUSED)
    reads, stored = source.reads, len(node.ids())

    def stands_still() -> None:
        assert (source.reads, len(node.ids())) == (reads, stored)

    await async_watch(stands_still, seconds=0.1)
    assert node.status("numbers").error == "the queries are behind"
    node.backlog.refused = None
    await async_wait_until(lambda: len(node.ids()) > stored + 10, within=WITHIN)
    await node.receivers.stop()
    assert node.ids() == list(range(len(node.ids())))
    assert source.opened == [None]


async def test_source_shares_a_record_with_producers_and_another_source(started: Any) -> None:
    one, two = Numbers(60, piece=1), Numbers(60, piece=1)
    node = started(one=one, two=two)
    await async_wait_until(lambda: len(node.ids()) == 120, within=WITHIN)
    assert sorted(node.ids()) == sorted([*range(60), *range(60)])
    assert node.status("one").known.rows == node.status("two").known.rows == 60


async def test_bad_row_becomes_a_dead_letter_and_the_others_are_stored(
    started: Any, tmp_path: Path
) -> None:
    bad = frozenset({0, 5, 6, 7, 8, 9, 25, 39})
    node = started(numbers=Numbers(40, piece=5, bad=bad))
    await async_wait_until(lambda: node.status("numbers").state is SourceState.IDLE, within=WITHIN)
    assert node.ids() == [number for number in range(40) if number not in bad]
    assert node.status("numbers").known == SourceOffset("40", 32, 8, 8)
    files = sorted(node.status("numbers").dead_letters.iterdir())
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [letter["place"] for letter in letters] == [f"row {number}" for number in sorted(bad)]
    assert letters[0]["raw"] == '{"id": "?"}'
    assert letters[0]["reason"] == """field 'id' is "?", expected a whole number of 32 bits"""


@pytest.mark.parametrize("bad", [0.0001, 0.3, 1.0])
async def test_many_bad_rows_are_found_in_one_batch(started: Any, bad: float) -> None:
    chance, count = random.Random(5), ROWS_MAX // 4
    numbers = frozenset({7}) | {n for n in range(count) if chance.random() < bad}
    node = started(numbers=Numbers(count, piece=count, bad=numbers))
    idle = SourceState.IDLE
    await async_wait_until(lambda: node.status("numbers").state is idle, within=4 * WITHIN)
    assert node.status("numbers").known.batches == 1
    assert node.ids() == [number for number in range(count) if number not in numbers]
    assert node.status("numbers").known.rejected == len(numbers)


async def test_rows_may_come_as_a_record_batch(started: Any) -> None:
    class Batches(Numbers):
        def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
            if self.next:
                return None
            self.next = 4
            columns = {"id": [1, None, 3, 1 << 40], "text": ["a", "b", None, "d"]}
            return SourceBatch("4", pa.RecordBatch.from_pydict(columns))

    node = started(numbers=Batches(4))
    await async_wait_until(lambda: node.status("numbers").state is SourceState.IDLE, within=WITHIN)
    assert node.rows() == [{"id": 1, "text": "a"}, {"id": 3, "text": None}]
    assert node.status("numbers").known.rejected == 2


async def test_rows_too_many_for_a_request_are_stored_in_smaller_pieces(started: Any) -> None:
    """A row that alone is too large becomes a dead letter."""

    class Wide(Numbers):
        def _row(self, number: int) -> bytes:
            length = (2 << 20) if number == 9 else (200 << 10)
            return json.dumps({"id": number, "text": "x" * length}).encode()

    node = started(ReceiveConfig(max_pending="1MiB"), numbers=Wide(20, piece=9))
    await async_wait_until(lambda: node.ids() == [*range(9), *range(10, 20)], within=WITHIN)
    [file] = node.status("numbers").dead_letters.iterdir()
    [letter] = [json.loads(line) for line in file.read_text().splitlines()]
    assert letter["place"] == "row 9"
    assert "the limit of a request is 1048576" in letter["reason"]


async def test_transient_error_of_a_source_is_shown_until_it_ends(started: Any) -> None:
    source = Numbers(20, piece=5)
    node = started(numbers=source)
    await async_wait_until(lambda: node.status("numbers").state is SourceState.IDLE, within=WITHIN)
    source.fails, source.end = SourceUnavailable("the share is away"), 30
    await async_wait_until(lambda: len(node.ids()) == 30, within=WITHIN)
    assert (node.ids(), source.opened) == (list(range(30)), [None, "20"])
    assert node.status("numbers").failures == 1


# -- plug-ins that misbehave -----------------------------------------------------------------------


def broken(how: str) -> Any:
    kind = source_kind("broken")
    return lambda place: kind(kind.Options(how=how), place)


@pytest.mark.parametrize(
    ("how", "state", "told"),
    [
        ("raises", SourceState.REFUSED, "failed in read: RuntimeError: out of luck"),
        ("exits", SourceState.REFUSED, "failed in read: SystemExit: 1"),
        ("raises in its construction", SourceState.REFUSED, "failed in construction: Lookup"),
        ("hangs", SourceState.LATE, "has not returned from read for"),
        ("has other columns", SourceState.REFUSED, "the stream has no field 'strange'"),
        ("has no offset", SourceState.REFUSED, "the plug-in returned no batch with an offset"),
        ("reads no batch", SourceState.REFUSED, "the plug-in returned no batch with an offset"),
        ("reads too much", SourceState.REFUSED, f"returned {ROWS_MAX + 1} rows, the limit is"),
        ("reads no rows", SourceState.REFUSED, "failed in read: TypeError: 'int' object is not"),
        ("reads text", SourceState.REFUSED, "a row is str, but must be bytes"),
        ("has strange letters", SourceState.REFUSED, "failed in read: AttributeError"),
        ("has no places", SourceState.REFUSED, "failed in validation: ZeroDivisionError"),
        ("has a wild offset", SourceState.REFUSED, "failed in read: UnicodeEncodeError"),
    ],
)
async def test_broken_source_is_named_and_the_others_continue(
    tmp_path: Path, how: str, state: SourceState, told: str
) -> None:
    source = Numbers(100)
    node = Pulling(tmp_path, broken=broken(how), numbers=always(source))
    node.receivers.open()
    await async_wait_until(lambda: told in (node.status("broken").error or ""), within=WITHIN)
    assert "source broken of stream events, of type kind," in (node.status("broken").error or "")
    assert node.status("broken").state is state
    await async_wait_until(lambda: node.ids() == list(range(100)), within=WITHIN)
    assert node.status("broken").known == SourceOffset()
    assert not node.receivers.failed.done()
    async with asyncio.timeout(5):
        await node.close()


@pytest.mark.parametrize("how", ["hangs", "hangs in close"])
async def test_hanging_source_does_not_delay_a_demotion(tmp_path: Path, how: str) -> None:
    node = Pulling(tmp_path, broken=broken(how))
    node.receivers.open()
    await async_wait_until(lambda: node.status("broken").state is not SourceState.STOPPED)
    async with asyncio.timeout(3):
        await node.receivers.stop()
    assert node.status("broken").state is SourceState.STOPPED
    await node.close()


async def test_read_that_returns_after_the_gate_closed_stores_no_rows(
    started: Any,
) -> None:
    """The source gets no other call before that read has returned and the source is closed."""
    source = Held(10)
    node = started(numbers=source)
    await async_wait_until(source.begun.is_set, within=WITHIN)
    node.receivers.close("demoted")
    await async_wait_until(lambda: node.status("numbers").state is SourceState.STOPPED)
    node.receivers.open()

    def is_opened_once() -> None:
        assert source.opened == [None]

    await async_watch(is_opened_once, seconds=0.1)
    node.receivers.close("demoted")
    source.let_go.set()
    await async_wait_until(lambda: source.calls == ["open", "read", "close"], within=WITHIN)
    assert node.ids() == []
    node.receivers.open()
    await async_wait_until(lambda: node.ids() == list(range(10)), within=WITHIN)


class SlowReader:
    """A reader of a source whose plug-in takes long to close."""

    stream, source = "events", "slow"

    def __init__(self) -> None:
        self.closes, self.begun, self.running, self.most = asyncio.Event(), 0, 0, 0

    async def run(self) -> None:
        self.begun, self.running = self.begun + 1, self.running + 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.Event().wait()
        finally:
            await self.closes.wait()
            self.running -= 1


async def test_source_that_opens_often_has_one_reader(started: Any) -> None:
    """A reader that is cancelled while it waits for the first one must not end the wait of the
    next one."""
    reader: Any = SlowReader()
    receivers = Receivers(started().gate, [reader])
    for _ in range(3):
        receivers.open()
        await asyncio.sleep(0)
        receivers.close("demoted")
        await asyncio.sleep(0)
    receivers.open()
    reader.closes.set()
    await async_wait_until(lambda: (reader.begun, reader.running) == (2, 1), within=WITHIN)
    assert reader.most == 1
    await receivers.stop()
    assert reader.running == 0


async def test_rows_that_another_reader_journalled_meanwhile_are_refused(
    started: Any,
) -> None:
    """The read of the rows began at an offset that is no longer that of the journal."""
    source = Held(10)
    node = started(numbers=source)
    await async_wait_until(source.begun.is_set, within=WITHIN)
    theirs = Events("events", 4, 0, (), (Pulled("numbers", "4", 4),))
    node.gate.replay(Record(Position(2, 1), 0, theirs))
    source.let_go.set()
    await async_wait_until(lambda: node.ids() == list(range(4, 10)), within=WITHIN)
    assert source.opened == [None, "4"]
    assert node.status("numbers").known.rows == 10


# -- in an application -----------------------------------------------------------------------------


def application(home: Path, *sources: dict[str, Any]) -> Path:
    stream = {"schema": {"n": "bigint"}, "sources": list(sources)}
    tree = {
        "name": "plugins",
        "streams": {"events": stream},
        "queries": {"all": {"sql": "SELECT n FROM events"}},
    }
    path = home / "application.yaml"
    path.write_text(json.dumps(tree))
    return path


def test_an_application_names_its_sources(tmp_path: Path) -> None:
    drop = {"name": "drop", "type": "tail", "file": "/somewhere"}
    loaded = load_application(application(tmp_path, drop))
    [source] = loaded.streams["events"].sources
    assert (source.type, source.guarantee) == ("tail", source_kind("tail").guarantee)
    other = load_application(application(tmp_path, drop | {"file": "/elsewhere"}))
    assert other.digest != loaded.digest
    assert other.queries["all"].digest == loaded.queries["all"].digest


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"type": "tial"}, r"streams.events.sources.drop.type: .*did you mean 'tail'"),
        ({"type": "tail", "fil": "/x"}, r"drop.fil is not a known key; did you mean 'file'"),
        ({"type": "file", "directory": "/x"}, r"sources.drop.format is missing"),
        (
            {"type": "unloadable"},
            r"package ha-engine-example-sink, which cannot be loaded: ModuleN",
        ),
    ],
)
def test_a_bad_source_is_named(tmp_path: Path, source: dict[str, Any], told: str) -> None:
    with pytest.raises(ApplicationError, match=told):
        load_application(application(tmp_path, {"name": "drop", **source}))


def test_two_sources_of_one_stream_have_two_names(tmp_path: Path) -> None:
    drop = {"name": "drop", "type": "tail", "file": "/x"}
    with pytest.raises(ApplicationError, match="two sources have the same name"):
        load_application(application(tmp_path, drop, drop | {"name": "Drop"}))
