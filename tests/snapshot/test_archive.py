"""A node's snapshot into a real database and back: journal, outbox and checkpoint on real disks."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from ha_engine.core import actions as do
from ha_engine.errors import (
    CheckpointIncomplete,
    DatabaseUnreachable,
    OutboxDamaged,
    SnapshotDamaged,
    SnapshotFailed,
)
from ha_engine.journal import Journal
from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.query.checkpoints import is_whole, stamp_restored
from ha_engine.snapshot import base_file, restored
from ha_engine.snapshot.checkpoint_storage import WHOLE
from ha_engine.snapshot.restore import finish
from ha_engine.snapshot.verification import verify
from ha_engine.stats.counters import Restored
from ha_engine.types import Chunk, History, Mark, Position, SnapshotPlace
from tests.snapshot.stored_node import (
    BATCHES,
    QUERY,
    Node,
    admit,
    cut_behind,
    node_at,
    prepare,
    taken,
)

HISTORY = History(Position(1, 1), (Position(1, 1),))
ANYWHERE = do.Restore(HISTORY, "a test")


def run_of(lineage: str) -> do.RunQuery:
    return do.RunQuery(QUERY, lineage, Mark(QUERY, 0, 0), must_resume=True, digest="d")


@pytest.fixture
def engine(engine: Engine) -> Engine:
    prepare(engine)
    return engine


def begun_again(node: Node, number: int) -> Restored:
    """Start again from a snapshot behind that batch; return the result of the restore."""
    node.journal.close()
    assert finish(node.places, node.checkpoints)
    require_restored(node.home, number)
    told = restored.load(node.places.home / "journal")
    assert told is not None
    return told


def require_restored(home: Path, number: int) -> None:
    """Require the state at the end of that batch, with which Spark continues at the next one."""
    place = cut_behind(number)
    journal = Journal.open(home / "journal", group="test")
    assert (journal.first, journal.last) == (place.position.sequence + 1, place.position)
    assert (journal.group_id, journal.epochs) == ("group-1", (Position(1, 1),))
    found = base_file.load(home / "journal" / "base.arrow")
    assert found is not None
    base, producers, offsets = found
    assert offsets == (("flights", "drop", f"file {number}", number, number, number),)
    assert base.position == place.position
    assert base.queries[0].last == Mark(QUERY, number, place.position.sequence)
    assert producers.column("sequence").to_pylist() == list(range(1, number + 1))
    checkpoint = home / "checkpoints" / QUERY
    assert (checkpoint / "ha_engine.stamp").read_text().startswith(f"{journal.journal_id}:2\n")
    assert max(int(one.name) for one in (checkpoint / "commits").iterdir()) == number - 1
    assert (checkpoint / "state/0/0" / f"{number}.delta").read_bytes() == bytes([number - 1]) * 2000
    assert not (checkpoint / "state/0/0" / f"{number + 1}.delta").exists()
    outbox = Outbox.open(home / "outbox")
    assert outbox.last_admitted(QUERY) == number
    kept = outbox.batch(QUERY, number)
    assert kept is not None
    assert read_batch_file(kept.path).to_pylist() == [{"n": number}]
    journal.close()


async def test_snapshot_restores_in_another_directory(engine: Engine, tmp_path: Path) -> None:
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    assert await taken(old, 3) == ((cut_behind(3).position, cut_behind(3).last_mark),)
    former = new.journal.journal_id
    revision = await new.archive.restore(ANYWHERE)
    assert revision.position == cut_behind(3).position
    new.journal.close()
    assert finish(new.places, new.checkpoints)
    require_restored(new.home, 3)
    assert Journal.open(new.home / "journal", group="test").journal_id != former
    assert not finish(new.places, new.checkpoints)


async def test_snapshot_with_a_damaged_batch_is_not_taken(engine: Engine, tmp_path: Path) -> None:
    node = node_at(tmp_path / "a", engine)
    batch = node.outbox.batch(QUERY, 3)
    assert batch is not None
    content = bytearray(batch.path.read_bytes())
    content[len(content) // 2] ^= 1
    batch.path.write_bytes(content)
    with pytest.raises(OutboxDamaged, match="checksum is wrong"):
        await taken(node, 3)
    assert node.store.revisions() == []


async def test_files_of_a_killed_restore_are_deleted_at_the_next_start(
    engine: Engine, tmp_path: Path
) -> None:
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    await new.archive.restore(ANYWHERE)
    new.places.whole.rename(new.places.coming)
    assert (new.places.checkpoints / WHOLE).exists()
    new.journal.close()
    assert not finish(new.places, new.checkpoints)
    assert not new.places.coming.exists()
    assert not (new.places.checkpoints / WHOLE).exists()


async def test_capture_leaves_no_files_and_the_next_stores_only_new_chunks(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    await taken(node, 3)
    await taken(node, 4)
    newest, older = node.store.revisions()
    assert newest.bytes_new < older.bytes_new < newest.bytes_total
    assert not (node.home / ".snapshot").exists()
    assert not (node.home / "checkpoints" / ".snapshot").exists()
    assert [verify(node.store, one, lambda _: None) for one in (newest, older)] == [[], []]


async def test_batches_that_every_sink_has_are_not_stored(engine: Engine, tmp_path: Path) -> None:
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    old.outbox.trim(QUERY, 2)
    await taken(old, 3)
    await new.archive.restore(ANYWHERE)
    new.journal.close()
    finish(new.places, new.checkpoints)
    outbox = Outbox.open(new.home / "outbox")
    assert (outbox.floor(QUERY), outbox.last_admitted(QUERY)) == (2, 3)


async def test_restored_node_knows_which_batches_were_trimmed(
    engine: Engine, tmp_path: Path
) -> None:
    """Spark continues behind the snapshot's batch, whether a sink still lacked it or not."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    old.outbox.trim(QUERY, 4)
    await taken(old, 3)
    await new.archive.restore(ANYWHERE)
    new.journal.close()
    finish(new.places, new.checkpoints)
    outbox = Outbox.open(new.home / "outbox")
    assert (outbox.first(QUERY), outbox.trimmed_through(QUERY), outbox.last_admitted(QUERY)) == (
        None,
        3,
        3,
    )
    admit(new.home, outbox, 4)
    assert outbox.last_admitted(QUERY) == 4


async def test_a_batch_that_spark_has_not_finished_fails_the_snapshot(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    with pytest.raises(CheckpointIncomplete, match="no finished batch 6"):
        await node.archive.take(
            SnapshotPlace(1, Position(1, 11), ((QUERY, BATCHES + 1),), Position(1, 12))
        )
    assert node.store.revisions() == []
    assert await taken(node, 3)


async def test_node_without_the_lease_makes_no_snapshot_visible(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    draft = await node.archive.take(cut_behind(3))
    with pytest.raises(SnapshotFailed, match="no longer holds the lease"):
        await node.archive.show(draft, 2)
    assert node.store.revisions() == []


async def test_chunks_of_failed_snapshots_do_not_accumulate(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yet the next attempt finds the stored chunks that it needs."""
    node, added, add = node_at(tmp_path / "a", engine), list[int](), SnapshotStore.add

    def never(*_: object, **__: object) -> None:
        raise DatabaseUnreachable("it is away, and comes back")

    def counted(draft: int, chunks: Sequence[Chunk]) -> None:
        added.append(len(chunks))
        add(node.store, draft, chunks)

    monkeypatch.setattr(node.store, "complete", never)
    monkeypatch.setattr(node.store, "add", counted)
    for number in range(BATCHES + 1, BATCHES + 4):
        node.grow(number, os.urandom(2000))
        with pytest.raises(DatabaseUnreachable):
            await node.archive.take(cut_behind(number))
        with engine.connect() as connection:
            assert connection.execute(text(NEEDED_BY_NONE)).scalar_one() == 0
    added.clear()
    with pytest.raises(DatabaseUnreachable):
        await node.archive.take(cut_behind(BATCHES + 3))
    assert added == []


NEEDED_BY_NONE = (
    "SELECT count(*) FROM ha_engine.chunk WHERE digest NOT IN"
    " (SELECT digest FROM ha_engine.revision_chunk)"
)
SWAP_MANIFESTS = (
    "UPDATE ha_engine.revision one SET manifest = other.manifest,"
    " manifest_digest = other.manifest_digest FROM ha_engine.revision other"
    " WHERE one.id <> other.id"
)
DAMAGES = {
    "corrupt": "UPDATE ha_engine.chunk SET stored = 'x' WHERE digest IN ({new})",
    "missing": (
        "ALTER TABLE ha_engine.revision_chunk DROP CONSTRAINT revision_chunk_digest_fkey;"
        " DELETE FROM ha_engine.chunk WHERE digest IN ({new})"
    ),
    "swapped": (
        "UPDATE ha_engine.chunk SET (stored, size) = (SELECT stored, size FROM ha_engine.chunk"
        " WHERE digest NOT IN ({new}) LIMIT 1) WHERE digest IN ({new})"
    ),
    **{
        f"size {size}": f"UPDATE ha_engine.chunk SET size = {size} WHERE digest IN ({{new}})"
        for size in (-1, 0, 1 << 62, (1 << 63) - 1)
    },
    "manifest": "UPDATE ha_engine.revision SET manifest = 'x' WHERE id = {newest}",
}
NEW = (
    "SELECT digest FROM ha_engine.revision_chunk WHERE revision_id = {newest} EXCEPT"
    " SELECT digest FROM ha_engine.revision_chunk WHERE revision_id <> {newest}"
)


@pytest.mark.parametrize("kind", DAMAGES)
async def test_damaged_revision_is_reported_and_the_one_before_it_restored(
    engine: Engine, tmp_path: Path, kind: str
) -> None:
    """RULES.md#i10."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    await taken(old, 4)
    newest, older = old.store.revisions()
    statement = DAMAGES[kind].format(new=NEW, newest="{newest}").format(newest=newest.id)
    with engine.begin() as connection:
        connection.execute(text(statement))
    revision = await new.archive.restore(ANYWHERE)
    assert revision.id == older.id
    assert verify(old.store, newest, lambda _: None) != []
    assert verify(old.store, older, lambda _: None) == []
    told = begun_again(new, 3)
    assert (told.revision, told.skipped) == (older.id, (newest.id,))
    assert (told.position, told.bytes) == (str(older.position), older.bytes_total)


async def test_a_manifest_of_another_revision_is_not_restored(
    engine: Engine, tmp_path: Path
) -> None:
    """RULES.md#i10: the restored position would differ from that of the chosen revision."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    await taken(old, 4)
    with engine.begin() as connection:
        connection.execute(text(SWAP_MANIFESTS))
    told = [verify(old.store, one, lambda _: None) for one in old.store.revisions()]
    assert told == [
        ["the manifest is for 1.7, but the revision is at 1.9"],
        ["the manifest is for 1.9, but the revision is at 1.7"],
    ]
    with pytest.raises(
        SnapshotDamaged, match=r"the manifest is for 1\.9, but the revision is at 1\.7"
    ):
        await new.archive.restore(ANYWHERE)


async def test_a_snapshot_of_another_group_of_the_same_name_is_not_restored(
    engine: Engine, tmp_path: Path
) -> None:
    """The group was created again under another id; without a lease row no node could tell."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ha_engine.lease SET group_id = 'group-2', version = 2"))
    with pytest.raises(SnapshotDamaged, match=r"group id group-1, but .* the id group-2"):
        await new.archive.restore(ANYWHERE)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM ha_engine.lease"))
    assert await new.archive.restore(ANYWHERE)


async def test_lost_query_state_is_restored_and_the_journal_kept(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    await taken(node, 3)
    stamp = f"{node.journal.journal_id}:2"
    checkpoint = node.places.checkpoints / QUERY
    (checkpoint / "state/0/0/5.delta").write_bytes(b"")  # a loss of power emptied it
    restored = await node.archive.bring_state(run_of(stamp), HISTORY)
    assert restored is not None
    assert restored.revision.position == cut_behind(3).position
    assert (restored.number, restored.left, restored.batches) == (3, 0, ())
    assert max(int(one.name) for one in (checkpoint / "commits").iterdir()) == 2
    assert not (checkpoint / "state/0/0/5.delta").exists()
    assert node.journal.last.sequence == 2 + 2 * BATCHES
    assert node.outbox.last_admitted(QUERY) == BATCHES
    again = await node.archive.bring_state(run_of(stamp), HISTORY)
    assert again is None, "it is whole now"


async def test_revisions_skipped_in_the_restore_of_a_query_state_are_counted(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    await taken(node, 3)
    await taken(node, 4)
    newest, older = node.store.revisions()
    with engine.begin() as connection:
        connection.execute(text(DAMAGES["manifest"].format(newest=newest.id)))
    shutil.rmtree(node.places.checkpoints / QUERY)
    stamp = f"{node.journal.journal_id}:2"
    brought = await node.archive.bring_state(run_of(stamp), HISTORY)
    assert brought is not None
    assert (brought.revision.id, node.archive.counts.skipped) == (older.id, 1)


async def test_node_with_another_application_restores_a_query_state_only(
    engine: Engine, tmp_path: Path
) -> None:
    """1. An added query fails from its first batch on, so that no snapshot is taken. 2. The
    checkpoint of another query is lost: its lineage says that the state is of the same code."""
    await taken(node_at(tmp_path / "a", engine), 3)
    changed = node_at(tmp_path / "b", engine, application="another")
    shutil.rmtree(changed.places.checkpoints / QUERY)
    stamp = f"{changed.journal.journal_id}:2"
    assert await changed.archive.bring_state(run_of(stamp), HISTORY) is not None
    with pytest.raises(
        SnapshotDamaged, match="under the application app, but this node runs another"
    ):
        await changed.archive.restore(ANYWHERE)


async def test_existing_state_that_continues_under_changed_code_is_not_restored(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    stamp = f"{node.journal.journal_id}:{{}}".format
    stamp_restored(node.places.checkpoints / QUERY, stamp(2))
    run = replace(run_of(stamp(7)), earlier=(stamp(5), stamp(2)))
    assert await node.archive.bring_state(run, HISTORY) is None
    assert is_whole(node.places.checkpoints, QUERY, stamp(7))
    assert not is_whole(node.places.checkpoints, QUERY, stamp(2))


@pytest.mark.parametrize(
    ("stamp", "history", "reason"),
    [
        ("j:7", HISTORY, "no state of query delays of the lineage in the journal"),
        ("j:2", History(Position(1, 1), (Position(1, 1),), Position(1, 6)), "no revision"),
        ("j:2", History(Position(1, 8), (Position(1, 1),)), "no revision of this history"),
    ],
    ids=["another lineage", "not in the journal yet", "trimmed there"],
)
async def test_query_state_that_does_not_fit_the_journal_is_not_restored(
    engine: Engine, tmp_path: Path, stamp: str, history: History, reason: str
) -> None:
    node = node_at(tmp_path / "a", engine)
    await taken(node, 3)
    with pytest.raises(SnapshotDamaged, match=reason):
        await node.archive.bring_state(run_of(stamp), history)
    assert (node.places.checkpoints / QUERY / "commits" / str(BATCHES - 1)).exists()


@pytest.mark.parametrize(
    ("trimmed", "admitted", "left", "brought"),
    [(0, 2, 0, [3, 4]), (2, 1, 2, [3, 4]), (3, 3, 3, [4]), (4, 0, 4, [])],
)
async def test_outbox_that_lacks_the_batches_of_a_restored_state_gets_them(
    engine: Engine, tmp_path: Path, trimmed: int, admitted: int, left: int, brought: list[int]
) -> None:
    """A node was off while another one took the snapshot. Its journal has the records by now."""
    old, node = (
        node_at(tmp_path / "a", engine),
        node_at(tmp_path / "b", engine, admitted=admitted),
    )
    old.outbox.trim(QUERY, trimmed)
    await taken(old, 4)
    shutil.rmtree(node.places.checkpoints / QUERY)
    run = run_of(f"{node.journal.journal_id}:2")
    restored = await node.archive.bring_state(run, HISTORY)
    assert restored is not None
    assert (restored.number, restored.left) == (4, left)
    assert [int(batch.path.stem) for batch in restored.batches] == brought
    assert [batch.rows for batch in restored.batches] == [1] * len(brought)
    assert not node.places.coming.exists()
    for outbox in (node.outbox, Outbox.open(node.home / "outbox")):
        assert (outbox.floor(QUERY), outbox.last_admitted(QUERY)) == (left, 4)
        for number in range(left + 1, 5):
            batch = outbox.batch(QUERY, number)
            assert batch is not None
            assert read_batch_file(batch.path).to_pylist() == [{"n": number}]
    admit(node.home, node.outbox, 5)


async def test_query_state_requested_twice_is_restored_once(engine: Engine, tmp_path: Path) -> None:
    """Spark runs on the first one when the node handles the second request."""
    node = node_at(tmp_path / "a", engine)
    await taken(node, 3)
    stamp = f"{node.journal.journal_id}:2"
    asked = [node.archive.bring_state(run_of(stamp), HISTORY) for _ in range(2)]
    assert sorted(found is None for found in await asyncio.gather(*asked)) == [False, True]


async def test_revision_in_restore_is_not_deleted(engine: Engine, tmp_path: Path) -> None:
    node = node_at(tmp_path / "a", engine)
    await taken(node, 1)
    first = node.store.revisions()[0].id
    node.store.pin(first, 3600)
    for number in (2, 3, 4):
        await taken(node, number)
    assert [one.id for one in node.store.revisions()][2:] == [first]
    assert (
        Position(1, 3),
        Position(1, 4),
    ) in await node.archive.look()  # so no node trims its records
    node.store.pin(first, 0)
    await taken(node, 5)
    assert first not in [one.id for one in node.store.revisions()]


async def test_revision_deleted_before_its_restore_is_not_reported_as_damaged(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A joiner lists the revisions. 2. Two new ones become visible. 3. It begins to read the one
    that was the newest: that is deleted, and the new ones exist."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    stale = old.store.revisions()
    await taken(old, 4)
    await taken(old, 5)
    old.store.forget(keep=1)
    listed, looks = new.store.revisions, iter([stale])
    monkeypatch.setattr(new.store, "revisions", lambda: next(looks, None) or listed())
    revision = await new.archive.restore(ANYWHERE)
    told = begun_again(new, 5)
    assert (told.revision, told.skipped) == (revision.id, ())


async def test_next_snapshot_stores_a_damaged_chunk_again(engine: Engine, tmp_path: Path) -> None:
    """RULES.md#i10: revisions share chunks, so a new one would be as damaged as the old ones."""
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    await taken(old, 4)
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE ha_engine.chunk SET stored = 'x' WHERE digest IN (SELECT"
                " digest FROM ha_engine.revision_chunk GROUP BY digest HAVING count(*) > 1)"
            )
        )
    with pytest.raises(SnapshotDamaged):
        await new.archive.restore(ANYWHERE)
    await taken(old, 5)
    await new.archive.restore(ANYWHERE)
    begun_again(new, 5)


async def test_restore_without_an_intact_revision_changes_nothing_and_advises(
    engine: Engine, tmp_path: Path
) -> None:
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine, empty=True)
    await taken(old, 3)
    before = new.journal.journal_id
    for begins, epochs in (
        (Position(1, 8), (Position(1, 1),)),  # it is before the records that the holder still has
        (Position(1, 1), (Position(1, 1), Position(2, 5))),  # it is of another history
    ):
        with pytest.raises(
            SnapshotDamaged, match=r"no revision of this history is at .* snapshot now"
        ):
            await new.archive.restore(do.Restore(History(begins, epochs), "a test"))
    new.refuses.append("it was taken under another application")
    with pytest.raises(SnapshotDamaged, match="another application"):
        await new.archive.restore(ANYWHERE)
    new.journal.close()
    assert not finish(new.places, new.checkpoints)
    assert Journal.open(new.home / "journal", group="test").journal_id == before


@pytest.mark.parametrize("step", range(1, 12))
async def test_restore_killed_at_any_directory_change_is_completed_at_the_next_start(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    old, new = node_at(tmp_path / "a", engine), node_at(tmp_path / "b", engine)
    await taken(old, 3)
    await new.archive.restore(ANYWHERE)
    new.journal.close()
    _die_at(step, monkeypatch)
    try:
        finish(new.places, new.checkpoints)
        died = False
    except KeyboardInterrupt:
        died = True
    monkeypatch.undo()
    assert finish(new.places, new.checkpoints) == died
    require_restored(new.home, 3)


def _die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process before its ``step``-th change of a directory."""
    steps = 0
    for module, name in ((os, "rename"), (os, "rmdir"), (shutil, "rmtree")):
        real = getattr(module, name)

        def counted(*arguments: object, real: object = real, **options: object) -> object:
            nonlocal steps
            steps += 1
            if steps == step:
                raise KeyboardInterrupt
            return real(*arguments, **options)  # type: ignore[operator]

        monkeypatch.setattr(module, name, counted)


async def test_trimmed_journal_replays_the_same_state_from_its_base(
    engine: Engine, tmp_path: Path
) -> None:
    node = node_at(tmp_path / "a", engine)
    whole = node.archive._folding.through(9)
    await node.archive.trim(Position(1, 7))
    assert node.journal.first > 1
    assert node.archive._folding.through(9) == whole
    assert base_file.load(node.home / "journal" / "base.arrow") is not None
