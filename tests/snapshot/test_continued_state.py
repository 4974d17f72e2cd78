"""The state with which a new active continues a query that only the active runs (RULES.md#r33)."""

from __future__ import annotations

import asyncio
import errno
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import Engine

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import CheckpointsFailed, SnapshotDamaged
from ha_engine.node.snapshot_actions import SnapshotActions
from ha_engine.query.checkpoints import disown, is_whole, last_mark, offer, stamp_restored
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import RestoredState
from ha_engine.system.files import OsFiles
from ha_engine.types import History, Mark, Position
from tests.snapshot.stored_node import BATCHES, QUERY, Node, node_at, prepare, taken

HISTORY = History(Position(1, 1), (Position(1, 1), Position(2, 100)))
PUBLISHED = 4
HANG_SECONDS = 30


class FullDisk(OsFiles):
    def sync(self, path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left", str(path))


@dataclass(frozen=True, slots=True)
class Pair:
    """The former active, which is gone, and the node that takes over. They share a file system."""

    former: Node
    new: Node

    @property
    def checkpoint(self) -> Path:
        return self.new.places.checkpoints / QUERY

    async def take_over(
        self, shared: dict[int, int], *, must_resume: bool = False
    ) -> RestoredState | None:
        return await self.new.archive.bring_state(
            self.run(shared, must_resume=must_resume), HISTORY
        )

    def run(self, shared: dict[int, int], *, must_resume: bool) -> do.RunQuery:
        return do.RunQuery(
            QUERY,
            f"{self.new.journal.journal_id}:2",
            Mark(QUERY, 0, 0),
            must_resume=must_resume,
            digest="d",
            takeover=do.Takeover(3, PUBLISHED, tuple(shared.items())),
        )

    def has_own_state(self, through: int) -> None:
        """Give the new node a complete checkpoint of its own, which ends with that batch."""
        shutil.copytree(self.former.places.checkpoints / QUERY, self.checkpoint)
        for batch in range(through, BATCHES):
            (self.checkpoint / "commits" / str(batch)).unlink()
        stamp_restored(self.checkpoint, f"{self.new.journal.journal_id}:2")


@pytest.fixture
async def pair(engine: Engine, tmp_path: Path) -> Pair:
    prepare(engine)
    roots = [tmp_path / name / "checkpoints" for name in "ab"]
    former = node_at(tmp_path / "a", engine)
    new = node_at(tmp_path / "b", engine, admitted=0, shared=roots)
    stamp_restored(roots[0] / QUERY, f"{former.journal.journal_id}:2")
    offer(roots[0] / QUERY, 2)
    shutil.rmtree(roots[1])
    return Pair(former, new)


async def test_query_continues_after_the_batch_that_every_sink_has(pair: Pair) -> None:
    brought = await pair.take_over({1: 1, 2: PUBLISHED})
    assert brought == RestoredState(None, PUBLISHED, left=PUBLISHED)
    assert is_whole(pair.checkpoint.parent, QUERY, f"{pair.new.journal.journal_id}:2")
    assert last_mark(pair.checkpoint.parent, QUERY) == PUBLISHED
    assert not (pair.checkpoint / "state/0/0" / f"{PUBLISHED + 1}.delta").exists()
    assert pair.new.outbox.last_admitted(QUERY) == PUBLISHED


async def test_checkpoint_of_an_epoch_that_the_journal_lacks_is_not_continued(pair: Pair) -> None:
    """Its batches may be of a history that an operator gave up."""
    assert await pair.take_over({1: PUBLISHED}) is None
    assert not pair.checkpoint.exists()


async def test_checkpoint_that_no_active_has_written_is_not_continued(pair: Pair) -> None:
    (pair.former.places.checkpoints / QUERY / "ha_engine.epoch").unlink()
    assert await pair.take_over({2: PUBLISHED}) is None


async def test_checkpoint_of_another_state_is_not_continued(pair: Pair) -> None:
    former = pair.former
    stamp_restored(former.places.checkpoints / QUERY, f"{former.journal.journal_id}:7")
    assert await pair.take_over({2: PUBLISHED}) is None


async def test_state_from_before_a_change_that_keeps_it_is_continued(pair: Pair) -> None:
    journal_id = pair.new.journal.journal_id
    run = replace(
        pair.run({2: PUBLISHED}, must_resume=True),
        lineage=f"{journal_id}:7",
        earlier=(f"{journal_id}:2",),
    )
    brought = await pair.new.archive.bring_state(run, HISTORY)
    assert brought is not None
    assert brought.number == PUBLISHED
    assert is_whole(pair.checkpoint.parent, QUERY, f"{journal_id}:7")


async def test_what_the_former_driver_still_writes_changes_nothing(pair: Pair) -> None:
    await pair.take_over({2: PUBLISHED})
    theirs = pair.former.places.checkpoints / QUERY
    state = (pair.checkpoint / "state/0/0/1.delta").read_bytes()
    (theirs / "state/0/0/1.delta").unlink()
    (theirs / "state/0/0/1.delta").write_bytes(b"other")
    (theirs / "commits" / str(BATCHES)).write_text("v1\n{}")
    assert (pair.checkpoint / "state/0/0/1.delta").read_bytes() == state
    assert last_mark(pair.checkpoint.parent, QUERY) == PUBLISHED


async def test_checkpoint_with_a_torn_file_is_left_out(pair: Pair) -> None:
    offsets = pair.former.places.checkpoints / QUERY / "offsets" / str(PUBLISHED)
    offsets.write_text(offsets.read_text()[:-3])
    brought = await pair.take_over({2: PUBLISHED})
    assert brought is None
    assert not pair.checkpoint.exists()


async def test_state_that_spark_cannot_read_is_not_continued_again(pair: Pair) -> None:
    await taken(pair.former, 3)
    await pair.take_over({2: PUBLISHED}, must_resume=True)
    disown(pair.checkpoint)
    brought = await pair.take_over({2: PUBLISHED}, must_resume=True)
    assert brought is not None
    assert (brought.number, brought.revision is not None) == (3, True)


async def test_failed_storage_of_the_checkpoints_leaves_the_node_alive(pair: Pair) -> None:
    await taken(pair.former, 3)
    pair.checkpoint.parent.write_text("not a directory")
    run = pair.run({2: PUBLISHED}, must_resume=True)
    inputs = list[on.Input]()
    actions = SnapshotActions(pair.new.archive, inputs.append, lambda query, number: None)
    assert not await actions.bring_state(run, HISTORY)
    [failed] = inputs
    assert isinstance(failed, on.QueryFailed)
    assert failed.by_host
    assert "checkpoints" in failed.reason


@pytest.mark.parametrize("has_shared", [True, False])
async def test_outbox_is_unchanged_until_the_state_is_stored(pair: Pair, has_shared: bool) -> None:
    """Else the next attempt would not tell the core that the outbox begins later."""
    await taken(pair.former, 3)
    shared = {2: PUBLISHED} if has_shared else {}
    whole = pair.new.archive._restoring
    assert isinstance(whole.checkpoints, CheckpointDirectories)
    full = replace(whole.checkpoints, files=FullDisk())
    pair.new.archive._restoring = replace(whole, files=FullDisk(), checkpoints=full)
    with pytest.raises(CheckpointsFailed):
        await pair.take_over(shared, must_resume=True)
    assert pair.new.outbox.last_admitted(QUERY) == 0
    pair.new.archive._restoring = whole
    brought = await pair.take_over(shared, must_resume=True)
    assert brought is not None
    assert (brought.left, len(brought.batches)) == ((PUBLISHED, 0) if has_shared else (0, 3))


async def test_own_state_needs_no_turn_of_the_thread_that_takes_snapshots(pair: Pair) -> None:
    pair.has_own_state(PUBLISHED)
    taking = Event()
    snapshot = asyncio.create_task(pair.new.archive._in_thread(taking.wait))
    try:
        assert await asyncio.wait_for(pair.take_over({2: PUBLISHED}), HANG_SECONDS) is None
        assert not snapshot.done()
    finally:
        taking.set()
        await snapshot


async def test_own_checkpoint_that_cannot_be_read_gives_way_to_another(pair: Pair) -> None:
    pair.has_own_state(PUBLISHED)
    (pair.checkpoint / "offsets" / str(PUBLISHED - 1)).write_text("v1\n{}\n{")
    brought = await pair.take_over({2: PUBLISHED})
    assert brought is not None
    assert last_mark(pair.checkpoint.parent, QUERY) == PUBLISHED


async def test_own_state_is_kept_if_it_has_what_the_sinks_have(pair: Pair) -> None:
    pair.has_own_state(PUBLISHED - 1)  # the batch after it was published before Spark ended it
    assert await pair.take_over({2: PUBLISHED}) is None
    assert last_mark(pair.checkpoint.parent, QUERY) == PUBLISHED - 1


async def test_own_state_of_an_earlier_term_gives_way_to_a_newer_one(pair: Pair) -> None:
    pair.has_own_state(1)
    brought = await pair.take_over({2: PUBLISHED})
    assert brought is not None
    assert (brought.number, last_mark(pair.checkpoint.parent, QUERY)) == (PUBLISHED, PUBLISHED)


async def test_snapshot_has_the_state_if_no_checkpoint_has_it(pair: Pair) -> None:
    await taken(pair.former, 3)
    (pair.former.places.checkpoints / QUERY / "state/0/0/1.delta").unlink()
    brought = await pair.take_over({2: PUBLISHED}, must_resume=True)
    assert brought is not None
    assert brought.revision is not None
    assert (brought.number, brought.left, len(brought.batches)) == (3, 0, 3)


async def test_snapshot_older_than_the_own_state_is_not_restored(pair: Pair) -> None:
    await taken(pair.former, 1)
    pair.has_own_state(2)
    assert await pair.take_over({}) is None
    assert last_mark(pair.checkpoint.parent, QUERY) == 2


async def test_state_that_is_nowhere_is_reported(pair: Pair) -> None:
    with pytest.raises(SnapshotDamaged, match="there is no snapshot"):
        await pair.take_over({}, must_resume=True)


async def test_first_start_needs_no_state(pair: Pair) -> None:
    lineage, begin = f"{pair.new.journal.journal_id}:2", do.Takeover(1, 0, ())
    run = do.RunQuery(QUERY, lineage, Mark(QUERY, 0, 0), False, "d", takeover=begin)
    assert await pair.new.archive.bring_state(run, HISTORY) is None
