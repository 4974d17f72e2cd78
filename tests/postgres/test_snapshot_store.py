"""Revisions and chunks in a real PostgreSQL: a visible revision is whole under any concurrency."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event, text

from ha_engine.errors import DraftLost
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.snapshot.chunks import digest_of, pack, unpack
from ha_engine.types import Holder, LeaseRow, Member, Position
from tests.waiting import wait_until

HOLDER = Holder("node-a", "process-1")
EPOCH = 3
AT = Position(EPOCH, 100)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """Where node-a holds the lease."""
    leases = PostgresLeaseStore(engine, "default", 5.0, db_timeout=60)
    leases.create(LeaseRow("group-1", HOLDER, EPOCH, 1, (Member("node-a", "journal-a"),)))
    leases.close()
    return engine


@pytest.fixture
def store(engine: Engine) -> Iterator[SnapshotStore]:
    store = SnapshotStore(engine, "default")
    yield store
    store.close()


def content(*names: str) -> list[bytes]:
    return [name.encode() * 1000 for name in names]


def complete(
    store: SnapshotStore, draft: int, manifest: bytes, *, chunks: int, size: int = 1
) -> None:
    counts = {"chunks": chunks, "bytes_total": size, "bytes_new": chunks}
    store.complete(draft, AT, AT, manifest, b"digest", **counts)


def draft_of(store: SnapshotStore, *names: str) -> int:
    """Write a complete draft; its manifest names its chunks."""
    draft = store.begin("node-b")
    contents = {digest_of(one): one for one in content(*names)}
    missing = store.refer(draft, contents)
    store.add(draft, [pack(contents[digest]) for digest in missing])
    manifest = ",".join(names).encode()
    size = sum(map(len, contents.values()))
    complete(store, draft, manifest, chunks=len(contents), size=size)
    return draft


def shown(store: SnapshotStore, *names: str) -> int:
    draft = draft_of(store, *names)
    assert store.show(draft, HOLDER, EPOCH)
    return draft


def require_whole(store: SnapshotStore) -> None:
    """Require that each chunk of the manifest of each visible revision exists undamaged."""
    for revision in store.revisions():
        found = store.manifest(revision.id)
        assert found is not None
        contents = content(*found[0].decode().split(","))
        chunks = store.chunks([digest_of(one) for one in contents])
        assert [unpack(chunks[digest_of(one)]) for one in contents] == contents


def chunk_count(engine: Engine) -> int:
    with engine.connect() as connection:
        count = connection.execute(text("SELECT count(*) FROM ha_engine.chunk")).scalar_one()
    return int(count)


def test_revision_is_visible_once_the_holder_shows_it(store: SnapshotStore) -> None:
    draft = draft_of(store, "a", "b")
    assert store.revisions() == []
    assert store.manifest(draft) is None
    assert store.show(draft, HOLDER, EPOCH)
    (revision,) = store.revisions()
    assert (revision.id, revision.taken_by, revision.position) == (draft, "node-b", AT)
    assert (revision.bytes_total, revision.bytes_new) == (2000, 2)
    assert revision.begun_at <= revision.visible_at
    require_whole(store)


def test_list_of_revisions_does_not_load_their_manifests(
    store: SnapshotStore, engine: Engine
) -> None:
    """Each node lists them every half minute, and a manifest names every chunk of the state."""
    shown(store, "a")
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
    assert len(store.revisions()) == 1
    assert asked
    assert not any("manifest" in statement for statement in asked)


@pytest.mark.parametrize(
    ("holder", "epoch"),
    [
        (Holder("node-b", "process-1"), EPOCH),
        (Holder("node-a", "process-2"), EPOCH),
        (HOLDER, EPOCH - 1),
    ],
)
def test_only_the_holder_of_the_lease_shows_a_revision(
    store: SnapshotStore, holder: Holder, epoch: int
) -> None:
    draft = draft_of(store, "a")
    assert not store.show(draft, holder, epoch)
    assert store.revisions() == []


def test_showing_a_revision_again_changes_nothing(store: SnapshotStore) -> None:
    draft = shown(store, "a")
    (before,) = store.revisions()
    assert store.show(draft, HOLDER, EPOCH)
    (after,) = store.revisions()
    assert after.visible_at == before.visible_at
    assert after.age_seconds > before.age_seconds


def test_incomplete_draft_cannot_be_shown(store: SnapshotStore) -> None:
    draft = store.begin("node-b")
    with pytest.raises(Exception, match="revision_is_complete_when_visible"):
        store.show(draft, HOLDER, EPOCH)


def test_a_draft_that_lacks_a_chunk_of_its_manifest_is_never_complete(
    store: SnapshotStore, engine: Engine
) -> None:
    """The database failed over and lost the chunks added last."""
    draft = store.begin("node-b")
    store.add(draft, [pack(one) for one in content("a", "b")])
    with engine.begin() as connection:
        lost = {"digest": digest_of(content("b")[0])}
        connection.execute(
            text("DELETE FROM ha_engine.revision_chunk WHERE digest = :digest"), lost
        )
    with pytest.raises(DraftLost):
        complete(store, draft, b"a,b", chunks=2)
    assert store.revisions() == []


def test_draft_with_a_chunk_reported_damaged_is_never_complete(
    store: SnapshotStore, engine: Engine
) -> None:
    """1. A draft refers to an existing chunk. 2. A verification finds it damaged."""
    shown(store, "a")
    digest = digest_of(content("a")[0])
    with engine.begin() as connection:
        connection.execute(text("UPDATE ha_engine.chunk SET stored = 'x'"))
    draft = store.begin("node-b")
    assert store.refer(draft, [digest]) == set()
    store.distrust(store.chunks([digest])[digest])
    with pytest.raises(DraftLost, match="a part was damaged"):
        complete(store, draft, b"a", chunks=1)
    shown(store, "a")
    require_whole(store)


def test_revisions_share_chunks_and_unneeded_chunks_are_deleted(
    store: SnapshotStore, engine: Engine
) -> None:
    shown(store, "a", "b")
    second = store.begin("node-b")
    digests = [digest_of(one) for one in content("b", "c")]
    assert store.refer(second, digests) == {digests[1]}
    store.add(second, [pack(content("c")[0])])
    complete(store, second, b"b,c", chunks=2)
    assert store.show(second, HOLDER, EPOCH)
    assert chunk_count(engine) == 3
    gone = store.forget(keep=1)
    assert (gone.revisions, gone.chunks) == (1, 1)
    assert [revision.id for revision in store.revisions()] == [second]
    assert chunk_count(engine) == 2
    require_whole(store)


def test_the_newest_revisions_are_kept(store: SnapshotStore) -> None:
    ids = [shown(store, name) for name in "abcd"]
    store.forget(keep=2)
    assert [revision.id for revision in store.revisions()] == [ids[3], ids[2]]


def test_overtaken_writer_gets_an_error_and_leaves_only_collectable_chunks(
    store: SnapshotStore, engine: Engine
) -> None:
    late = store.begin("node-a")
    store.add(late, [pack(content("late")[0])])
    shown(store, "a")
    for call in (
        lambda: store.refer(late, [digest_of(content("a")[0])]),
        lambda: store.add(late, [pack(content("x")[0])]),
        lambda: complete(store, late, b"late", chunks=1),
        lambda: store.show(late, HOLDER, EPOCH),
    ):
        with pytest.raises(DraftLost, match="another node began a newer draft"):
            call()
    store.forget(keep=2)
    assert chunk_count(engine) == 1
    require_whole(store)


def test_chunk_stored_again_after_a_damage_report_is_kept(
    store: SnapshotStore, engine: Engine
) -> None:
    """Two readers find damage. 1. One reports it. 2. A snapshot repairs it. 3. The other reports
    it."""
    shown(store, "a", "b")
    with engine.begin() as connection:
        connection.execute(text("UPDATE ha_engine.chunk SET stored = 'x'"))
    damaged = store.chunks([digest_of(one) for one in content("a", "b")]).values()
    for one in damaged:
        store.distrust(one)
    shown(store, "a", "b")
    for one in damaged:
        store.distrust(one)
    require_whole(store)


def test_groups_share_chunks_and_see_only_their_own_revisions(
    store: SnapshotStore, engine: Engine
) -> None:
    other = SnapshotStore(engine, "another")
    shown(store, "a")
    draft = draft_of(other, "a")
    assert not other.show(draft, HOLDER, EPOCH)
    assert other.revisions() == []
    store.forget(keep=0)
    assert chunk_count(engine) == 1
    other.begin("node-x")
    other.forget(keep=2)
    assert chunk_count(engine) == 0
    other.close()


def test_chunk_about_to_be_collected_is_reported_missing(
    store: SnapshotStore, engine: Engine
) -> None:
    """RULES.md#r29: in either order, a draft never refers to a deleted chunk."""
    shown(store, "a")
    store.forget(keep=0)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO ha_engine.chunk VALUES (:digest, 1, 'x')"),
            {"digest": digest_of(content("a")[0])},
        )
    draft = store.begin("node-b")
    digest = digest_of(content("a")[0])
    answers: list[set[bytes]] = []
    with engine.connect() as collector, collector.begin() as transaction:
        collector.execute(text("DELETE FROM ha_engine.chunk"))
        writer = threading.Thread(target=lambda: answers.append(store.refer(draft, [digest])))
        writer.start()
        wait_until(lambda: _waiting_for_a_lock(engine) == 1)
        transaction.commit()
    writer.join()
    assert answers == [{digest}]


def _waiting_for_a_lock(engine: Engine) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def test_collector_keeps_a_chunk_that_a_writer_has_just_referred_to(
    store: SnapshotStore, engine: Engine
) -> None:
    draft = store.begin("node-b")
    store.add(draft, [pack(content("a")[0])])
    with engine.connect() as writer, writer.begin() as transaction:
        writer.execute(text("DELETE FROM ha_engine.revision_chunk"))
        writer.execute(
            text("INSERT INTO ha_engine.revision_chunk SELECT :draft, digest FROM ha_engine.chunk"),
            {"draft": draft},
        )
        assert store.forget(keep=2).chunks == 0
        transaction.commit()
    assert chunk_count(engine) == 1


def test_writers_and_collectors_at_once_never_damage_a_visible_revision(
    store: SnapshotStore, engine: Engine
) -> None:
    """Four writers overtake each other over a few names, while two collectors work all the time."""
    ended = threading.Event()
    wrong: list[BaseException] = []

    def write(seed: int) -> None:
        rng, mine = random.Random(seed), SnapshotStore(engine, "default")
        for _ in range(12):
            try:
                shown(mine, *sorted(rng.sample("abcdefgh", 4)))
            except DraftLost:
                continue
        mine.close()

    def collect() -> None:
        mine = SnapshotStore(engine, "default")
        while not ended.is_set():
            mine.forget(keep=2)
        mine.close()

    def guarded(work: object, *arguments: object) -> None:
        try:
            work(*arguments)  # type: ignore[operator]
        except BaseException as error:
            wrong.append(error)

    collectors = [threading.Thread(target=guarded, args=(collect,)) for _ in range(2)]
    writers = [threading.Thread(target=guarded, args=(write, seed)) for seed in range(4)]
    for thread in collectors + writers:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in collectors:
        thread.join()
    assert wrong == []
    assert store.revisions()
    require_whole(store)
