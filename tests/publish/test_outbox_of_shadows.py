"""The outbox of a query continues with that of its promoted shadow, and both can be compared."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import read_batch_file, write_batch_file
from ha_engine.outbox.comparing import Difference, compare, compare_newest
from ha_engine.outbox.published import PublishedBatches
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles

LIVE, SHADOW = "delays", "delays~4"


def add(outbox: Outbox, directory: Path, query: str, *numbers: int) -> None:
    """Admit batches that name their query."""
    for number in numbers:
        file = f"{query}/pending/{number}.i.arrow"
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"by": [query], "n": [number]})
        write_batch_file(directory / file, table, query=query, number=number)
        outbox.admit(query, number, file, 1, (directory / file).stat().st_size, None)


def made_by(outbox: Outbox, query: str = LIVE) -> dict[int, str]:
    """The query that made each batch of the outbox."""
    found = dict[int, str]()
    number = outbox.first(query)
    while number is not None and (batch := outbox.batch(query, number)) is not None:
        found[number] = read_batch_file(batch.path).column("by")[0].as_py()
        number += 1
    return found


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    """The live query has batches 1 to 6, and the shadow began after batch 2."""
    outbox = Outbox.open(tmp_path)
    add(outbox, tmp_path, LIVE, 1, 2, 3, 4, 5, 6)
    outbox.begin_shadow(SHADOW)
    outbox.set_outbox_floor(SHADOW, 2)
    add(outbox, tmp_path, SHADOW, 3, 4, 5)
    return outbox


@pytest.mark.parametrize("reopened", [False, True])
def test_batches_that_a_sink_lacks_are_those_of_the_shadow(
    outbox: Outbox, tmp_path: Path, reopened: bool
) -> None:
    outbox.continue_with(LIVE, SHADOW, 3)
    if reopened:
        outbox = Outbox.open(tmp_path)
    assert made_by(outbox) == {4: SHADOW, 5: SHADOW}
    assert outbox.last_admitted(LIVE) == 5
    assert outbox.shadows() == []
    add(outbox, tmp_path, LIVE, 6)
    assert outbox.last_admitted(LIVE) == 6


def test_shadow_that_is_behind_the_sinks_leaves_no_batch_of_the_former_code(
    outbox: Outbox, tmp_path: Path
) -> None:
    outbox.continue_with(LIVE, SHADOW, 6)
    assert made_by(outbox) == {}
    assert outbox.last_admitted(LIVE) == 6


def test_batches_that_the_shadow_no_longer_keeps_are_in_every_sink(
    outbox: Outbox, tmp_path: Path
) -> None:
    outbox.trim(SHADOW, 4)
    outbox.continue_with(LIVE, SHADOW, 2)
    assert made_by(outbox) == {5: SHADOW}


def test_directory_that_a_late_process_made_is_not_the_outbox_of_a_shadow(tmp_path: Path) -> None:
    outbox = Outbox.open(tmp_path)
    add(outbox, tmp_path, LIVE, 1, 2)
    (tmp_path / SHADOW / "pending").mkdir(parents=True)
    outbox = Outbox.open(tmp_path)
    outbox.continue_with(LIVE, SHADOW, 0)
    assert made_by(outbox) == {1: LIVE, 2: LIVE}
    assert outbox.shadows() == []


@pytest.mark.parametrize("crash_in", range(1, 20))
def test_crash_while_the_outbox_continues_is_repeated_at_the_next_start(
    tmp_path: Path, crash_in: int
) -> None:
    disk = SimulatedDisk(tmp_path / "disk", Random(crash_in))
    directory, files = disk.root / "outbox", SimulatedFiles(disk)
    outbox = Outbox.open(directory, files=files)
    for query, numbers in ((LIVE, (1, 2, 3, 4)), (SHADOW, (1, 2, 3))):
        if query == SHADOW:
            outbox.begin_shadow(query)
        for number in numbers:
            pending = directory / query / "pending"
            if not pending.exists():
                files.mkdir(pending.parent, 0o700) if not pending.parent.exists() else None
                files.mkdir(pending, 0o700)
            path = pending / f"{number}.i.arrow"
            table = pa.table({"by": [query], "n": [number]})
            write_batch_file(path, table, query=query, number=number, files=files)
            size = path.stat().st_size
            outbox.admit(query, number, str(path.relative_to(directory)), 1, size)
    files.crash_in = crash_in
    try:
        outbox.continue_with(LIVE, SHADOW, 1)
    except Crashed:
        disk.go_back(disk.image())  # the loss of power that leaves least
    again = Outbox.open(directory, files=SimulatedFiles(disk))
    again.continue_with(LIVE, SHADOW, 1)
    assert made_by(again) == {2: SHADOW, 3: SHADOW}


def test_damaged_outbox_of_a_shadow_is_deleted(outbox: Outbox, tmp_path: Path) -> None:
    (tmp_path / SHADOW / "4.arrow").unlink()
    assert Outbox.open(tmp_path).shadows() == []


# -- comparison ------------------------------------------------------------------------------------


def test_rows_are_compared_as_multisets() -> None:
    live = pa.table({"id": [1, 2, 2, 3], "x": [0.0, None, None, 1.5]})
    shadow = pa.table({"id": [2, 3, 1, 4], "x": [None, 1.5, -0.0, 2.0]})
    found = compare(7, live, shadow, rows_max=5)
    assert found == Difference(7, 4, 4, 1, 1, ({"id": 2, "x": None},), ({"id": 4, "x": 2.0},))
    assert compare(7, live, live, 5) == Difference(7, 4, 4, 0, 0)
    none = compare(7, live, shadow, rows_max=0)
    assert (none.only_live, none.live_rows) == (1, ())


def test_newest_batches_of_both_are_compared_also_after_their_publication(
    outbox: Outbox, tmp_path: Path
) -> None:
    published = PublishedBatches(tmp_path / "published", 100, 1 << 20)
    for number in (1, 2, 3, 4):
        batch = outbox.batch(LIVE, number)
        assert batch is not None
        published.keep(LIVE, number, batch)
    outbox.trim(LIVE, 4)
    found = compare_newest(outbox, published, LIVE, SHADOW, 10, 1)
    assert [one.number for one in found] == [5, 4, 3]
    assert all(one.only_live == one.only_shadow == 1 for one in found)
    assert len(compare_newest(outbox, published, LIVE, SHADOW, 2, 1)) == 2
