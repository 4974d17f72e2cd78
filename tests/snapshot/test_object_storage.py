"""Checkpoints on object storage: takeovers, restores, and snapshots that name objects.

The storage is a real S3 server, and the checkpoint is artificial, as in ``stored_node``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from ha_engine.core import actions as do
from ha_engine.errors import CheckpointIncomplete, CheckpointsFailed, SnapshotDamaged, StateLost
from ha_engine.query.object_checkpoints import Bucket, ObjectCheckpoints, Stamp
from ha_engine.query.object_path import ObjectPath
from ha_engine.query.offsets import add_sources, unfinished_mark
from ha_engine.snapshot.restore import RestoredState, finish
from ha_engine.snapshot.verification import verify
from ha_engine.types import History, Mark, Position
from tests.connectors.s3_broker import S3Broker, gateway, new_folder, running_broker
from tests.snapshot.stored_node import BATCHES, QUERY, Node, node_at, prepare, taken

HISTORY = History(Position(1, 1), (Position(1, 1), Position(2, 100)))
PUBLISHED = 4


nightly = pytest.mark.nightly(
    "snapshot/test_object_storage.py::test_snapshot_names_copies_that_spark_does_not_delete and "
    "the others of this file without this mark"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[S3Broker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def bucket(broker: S3Broker, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "writer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return bucket_at(broker.url)


def bucket_at(endpoint: str, folder: str = "") -> Bucket:
    settings = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    spark = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    return Bucket(f"s3a://events/{folder or new_folder()}", spark)


def at_once(delete: Callable[[], None]) -> None:
    delete()


@dataclass(frozen=True)
class Site:
    """The group's bucket, and nodes whose homes are below ``home``."""

    bucket: Bucket
    engine: Engine
    home: Path

    def checkpoints(self, node: str) -> ObjectCheckpoints:
        return ObjectCheckpoints(self.bucket, node, at_once)

    def node(self, name: str, *, admitted: int = BATCHES, on_storage: bool = True) -> Node:
        """Make a node whose checkpoint is in the run ``a run`` of its query."""
        home = self.home / name
        bucket = self.bucket if on_storage else None
        node = node_at(home, self.engine, admitted=admitted, bucket=bucket)
        if on_storage:
            self.upload(home, f"{name}/{QUERY}/a-run")
            stamp = Stamp(f"{node.journal.journal_id}:2", f"{name}/{QUERY}/a-run", in_use=True)
            self.checkpoints(name).put_stamp(QUERY, stamp)
        return node

    def upload(self, home: Path, run: str) -> None:
        root = home / "checkpoints" / QUERY
        for file in root.rglob("*"):
            if file.is_file():
                self.bucket.put(f"{run}/{file.relative_to(root)}", file)

    def keys(self, folder: str) -> set[str]:
        return {key.removeprefix(f"{folder}/") for key in self.bucket.sizes(folder)}

    def present(self, node: str) -> ObjectPath:
        stamp = self.checkpoints(node).stamp_of(QUERY)
        assert stamp is not None
        return ObjectPath.of(self.bucket, stamp.run)


@pytest.fixture
def site(bucket: Bucket, engine: Engine, tmp_path: Path) -> Site:
    prepare(engine)
    return Site(bucket, engine, tmp_path)


def lineage(node: Node) -> str:
    return f"{node.journal.journal_id}:2"


def takeover(node: Node, shared: dict[int, int], *, must_resume: bool = False) -> do.RunQuery:
    return do.RunQuery(
        QUERY,
        lineage(node),
        Mark(QUERY, 0, 0),
        must_resume=must_resume,
        digest="d",
        takeover=do.Takeover(3, PUBLISHED, tuple(shared.items())),
    )


def lost_state(node: Node) -> do.RunQuery:
    return do.RunQuery(QUERY, lineage(node), Mark(QUERY, 0, 0), must_resume=True, digest="d")


# -- the query process -----------------------------------------------------------------------------


def test_batch_that_failed_is_found_after_the_objects_were_listed(bucket: Bucket) -> None:
    checkpoint = ObjectPath.of(bucket, "a/q/run")

    def write(batch: int) -> None:
        mark = json.dumps({"mark": batch + 1, "sequence": 90})
        bucket.put(f"{checkpoint.key}/offsets/{batch}", f"v1\n{{}}\n{mark}".encode())

    write(6)
    bucket.put(f"{checkpoint.key}/commits/6", b"v1\n{}")
    add_sources(checkpoint, 1)
    assert unfinished_mark(checkpoint) == 0
    write(7)
    assert unfinished_mark(checkpoint) == 8


async def test_each_driver_continues_in_a_folder_of_its_own(site: Site) -> None:
    node, checkpoints = site.node("a"), site.checkpoints("a")
    site.bucket.put(f"a/{QUERY}/a-run/offsets/{BATCHES}", b"a batch that is not finished")
    for marker_of_hadoop in ("state", "state/0/1"):
        site.bucket.put(f"a/{QUERY}/a-run/{marker_of_hadoop}", b"")
    opened = checkpoints.open(QUERY, lineage(node), must_resume=True)
    checkpoints.offer(QUERY, 7)
    assert site.keys(f"a/{QUERY}") == {
        "ha_engine.stamp",
        *(f"{opened.name}/{one}" for one in ("metadata", "ha_engine.epoch")),
        *(f"{opened.name}/{log}/{n}" for log in ("offsets", "commits") for n in (3, 4)),
        *(f"{opened.name}/state/0/0/{version}.delta" for version in range(1, BATCHES + 1)),
    }
    again = checkpoints.open(QUERY, lineage(node), must_resume=True)
    assert again.key != opened.key
    # What an executor of the first driver still writes changes nothing in the second one's folder.
    site.bucket.put(f"{opened.key}/commits/{BATCHES}", b"v1\n{}")
    assert checkpoints.last_mark(QUERY) == BATCHES
    assert site.bucket.read(f"{again.key}/ha_engine.epoch") is None


async def test_folder_of_a_former_driver_is_deleted_by_hadoop_too(site: Site) -> None:
    node, deleted = site.node("a"), list[str]()
    checkpoints = replace(site.checkpoints("a"), delete_folder=deleted.append)
    opened = checkpoints.open(QUERY, lineage(node), must_resume=True)
    assert deleted == [f"{site.bucket.where}/a/{QUERY}/a-run"]
    checkpoints.open(QUERY, lineage(node), must_resume=True)
    assert deleted[1:] == [str(opened)]


@nightly
async def test_state_of_another_lineage_is_not_continued(site: Site) -> None:
    site.node("a")
    checkpoints = site.checkpoints("a")
    with pytest.raises(StateLost):
        checkpoints.open(QUERY, "other:3", must_resume=True)
    opened = checkpoints.open(QUERY, "other:3", must_resume=False)
    assert site.keys(f"a/{QUERY}") == {"ha_engine.stamp"}
    assert checkpoints.is_whole(QUERY, "other:3")
    assert checkpoints.last_mark(QUERY) is None
    assert not opened.is_dir()
    # Before its first batch, a query continues with empty state.
    assert not checkpoints.open(QUERY, "other:3", must_resume=True).is_dir()


@nightly
async def test_state_with_a_missing_object_is_not_continued(site: Site) -> None:
    node, checkpoints = site.node("a"), site.checkpoints("a")
    site.bucket.delete([f"a/{QUERY}/a-run/state/0/0/2.delta"])
    with pytest.raises(StateLost):
        checkpoints.open(QUERY, lineage(node), must_resume=True)


async def test_disowned_state_is_not_continued(site: Site) -> None:
    node, checkpoints = site.node("a"), site.checkpoints("a")
    checkpoints.disown(QUERY)
    assert not checkpoints.is_whole(QUERY, lineage(node))


# -- takeover --------------------------------------------------------------------------------------


def offered(site: Site, epoch: int = 2) -> None:
    site.bucket.put(f"a/{QUERY}/a-run/ha_engine.epoch", str(epoch).encode())


async def test_new_active_continues_the_state_that_every_sink_has(site: Site) -> None:
    site.node("a")
    offered(site)
    new = site.node("b", admitted=0)
    site.checkpoints("b").disown(QUERY)
    brought = await new.archive.bring_state(takeover(new, {1: 1, 2: PUBLISHED}), HISTORY)
    assert brought == RestoredState(None, PUBLISHED, left=PUBLISHED)
    checkpoints = site.checkpoints("b")
    assert checkpoints.last_mark(QUERY) == PUBLISHED
    restored = site.present("b").key
    assert checkpoints.open(QUERY, lineage(new), must_resume=True).key == restored
    assert site.keys(f"{restored}/state/0/0") == {f"{n}.delta" for n in range(1, PUBLISHED + 1)}


@nightly
@pytest.mark.parametrize("shared", [{1: PUBLISHED}, {2: 0}])
async def test_batches_that_the_journal_lacks_are_not_continued(
    site: Site, shared: dict[int, int]
) -> None:
    site.node("a")
    offered(site)
    new = site.node("b", admitted=0)
    site.checkpoints("b").disown(QUERY)
    assert await new.archive.bring_state(takeover(new, shared), HISTORY) is None


@nightly
async def test_storage_that_does_not_answer_leaves_the_node_alive(
    site: Site, broker: S3Broker
) -> None:
    with gateway(broker) as before:
        cut = replace(site, bucket=bucket_at(before.url))
        new = cut.node("b")
        before.close()
        with pytest.raises(CheckpointsFailed, match="not available"):
            await new.archive.bring_state(lost_state(new), HISTORY)


# -- snapshots -------------------------------------------------------------------------------------


async def test_snapshot_names_copies_that_spark_does_not_delete(site: Site) -> None:
    node = site.node("a")
    await taken(node, 3)
    (revision,) = node.store.revisions()
    assert revision.bytes_total - revision.bytes_new > 3 * 2000
    site.bucket.delete(site.bucket.sizes(f"a/{QUERY}"))
    brought = await node.archive.bring_state(lost_state(node), HISTORY)
    assert brought is not None
    assert brought.number == 3
    assert site.checkpoints("a").last_mark(QUERY) == 3
    assert (site.present("a") / "state/0/0/3.delta").read_bytes() == bytes([2]) * 2000


@nightly
async def test_next_snapshot_copies_only_new_files_and_deletes_those_of_forgotten_ones(
    site: Site,
) -> None:
    node = site.node("a")
    kept = f".kept/a/{QUERY}/a-run"
    await taken(node, 2)
    first = {one.key: one.modified for one in site.bucket.below(f"{kept}/state")}
    await taken(node, 3)
    second = {one.key: one.modified for one in site.bucket.below(f"{kept}/state")}
    assert second.items() > first.items()
    assert site.keys(f"{kept}/commits") == {"0", "1", "2"}
    await taken(node, 4)
    await taken(node, 5)
    await taken(node, 5)  # those at 4 and 5 were visible before
    assert site.keys(f"{kept}/commits") == {"2", "3", "4"}
    for one in node.store.revisions():
        assert not verify(node.store, one, lambda _: None, node.checkpoints.kept_problems)


@pytest.mark.parametrize("damage", ["missing", "has changed"])
async def test_damaged_object_is_found_and_an_older_revision_restored(
    site: Site, damage: str
) -> None:
    node = site.node("a")
    await taken(node, 2)
    await taken(node, 4)
    object_ = f".kept/a/{QUERY}/a-run/state/0/0/4.delta"
    if damage == "missing":
        site.bucket.delete([object_])
    else:
        site.bucket.put(object_, b"other bytes")
    newest = node.store.revisions()[0]
    (sentence,) = verify(node.store, newest, lambda _: None, node.checkpoints.kept_problems)
    assert damage in sentence
    site.checkpoints("a").disown(QUERY)
    brought = await node.archive.bring_state(lost_state(node), HISTORY)
    assert brought is not None
    assert brought.number == 2


async def test_snapshot_restores_a_whole_node_when_it_starts_again(site: Site) -> None:
    await taken(site.node("a"), 3)
    new = site.node("b")
    await new.archive.restore(do.Restore(HISTORY, "a test"))
    # A running query may open its checkpoint between the download and the next start.
    site.checkpoints("b").open(QUERY, lineage(new), must_resume=True)
    assert site.checkpoints("b").last_mark(QUERY) == BATCHES
    assert finish(new.places, new.checkpoints)
    assert not finish(new.places, new.checkpoints)
    assert site.checkpoints("b").last_mark(QUERY) == 3


@nightly
async def test_pair_that_moves_to_object_storage_restores_its_earlier_snapshot(site: Site) -> None:
    await taken(site.node("a", on_storage=False), 3)
    new = site.node("b", admitted=0)
    site.checkpoints("b").disown(QUERY)
    brought = await new.archive.bring_state(lost_state(new), HISTORY)
    assert brought is not None
    assert site.checkpoints("b").last_mark(QUERY) == 3
    assert (site.present("b") / "state/0/0/2.delta").read_bytes() == bytes([1]) * 2000


@nightly
async def test_node_without_the_object_storage_refuses_a_revision_that_names_it(
    site: Site,
) -> None:
    await taken(site.node("a"), 3)
    new = site.node("b", on_storage=False)
    with pytest.raises(SnapshotDamaged, match=r"set execution\.checkpoint to the place"):
        await new.archive.restore(do.Restore(HISTORY, "a test"))


@nightly
async def test_no_snapshot_is_taken_of_a_state_that_spark_has_deleted(site: Site) -> None:
    node = site.node("a")
    site.bucket.delete([f"a/{QUERY}/a-run/state/0/0/1.delta"])
    with pytest.raises(CheckpointIncomplete):
        await taken(node, 3)
