"""``ha-engine snapshot`` against a real database, while others write to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from ha_engine.cli.root import program
from ha_engine.errors import OnlyCopy, SnapshotUnfit
from ha_engine.journal import Journal
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.query.application import load_application
from ha_engine.snapshot import restore
from ha_engine.snapshot.checkpoint_storage import WHOLE, CheckpointStorage
from ha_engine.snapshot.restore import Places
from ha_engine.types import Chunk, Position, Revision
from tests.snapshot.stored_node import Node, facts, node_at, prepare, taken

APPLICATION = Path(__file__).parents[2] / "conf/applications/flights.yaml"
SPOIL_WHAT_IS_SHARED = (
    "UPDATE ha_engine.chunk SET stored = 'x' WHERE digest IN"
    " (SELECT digest FROM ha_engine.revision_chunk GROUP BY digest HAVING count(*) > 1)"
)
Run = Callable[..., Result]


@pytest.fixture
def engine(engine: Engine) -> Engine:
    prepare(engine)
    return engine


@pytest.fixture
async def node(engine: Engine, tmp_path: Path) -> Node:
    """Return a node that takes the snapshots; the commands run on another host."""
    return node_at(tmp_path / "a", engine)


@pytest.fixture
def snapshot(database_url: str, tmp_path: Path) -> Run:
    file = tmp_path / "engine.yaml"
    node = f"{{id: node-b, data_dir: {tmp_path / 'b'}}}"
    lines = [
        "group: test",
        f"node: {node}",
        f"database: {{url: '{database_url}'}}",
        f"application: {APPLICATION}",
    ]
    file.write_text("\n".join(lines))

    def run(*words: str) -> Result:
        return CliRunner().invoke(program(), ["snapshot", *words, "-c", str(file)])

    return run


async def test_revision_deleted_during_verify_is_not_reported_as_damage(
    engine: Engine, node: Node, snapshot: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await taken(node, 3)
    await taken(node, 4)
    newest, older = node.store.revisions()
    listed = SnapshotStore.revisions

    def forgotten_then(store: SnapshotStore) -> list[Revision]:
        revisions = listed(store)
        node.store.forget(keep=1)
        return revisions

    monkeypatch.setattr(SnapshotStore, "revisions", forgotten_then)
    verified = snapshot("verify")
    assert verified.exit_code == 0, verified.output
    told = f"revision {newest.id}: undamaged\nrevision {older.id}: deleted meanwhile\n"
    assert verified.output == told


async def test_revision_in_verify_is_not_deleted(
    node: Node, snapshot: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await taken(node, 3)
    (revision,) = node.store.revisions()
    read = SnapshotStore.chunks

    def after_others_forget(store: SnapshotStore, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        node.store.forget(keep=0)
        return read(store, digests)

    monkeypatch.setattr(SnapshotStore, "chunks", after_others_forget)
    verified = json.loads(snapshot("verify", "-f", "json").output)["revisions"]
    assert verified == [{"id": revision.id, "damage": [], "forgotten": False}]


async def test_next_snapshot_stores_chunks_that_verify_found_damaged(
    engine: Engine, node: Node, snapshot: Run
) -> None:
    await taken(node, 3)
    await taken(node, 4)
    with engine.begin() as connection:
        connection.execute(text(SPOIL_WHAT_IS_SHARED))
    verified = snapshot("verify")
    assert verified.exit_code == 1
    assert verified.output.count(": damaged\n") == 2
    assert "it cannot be decompressed" in verified.output
    assert verified.output.endswith("stores the damaged chunks again: ha-engine snapshot now\n")
    await taken(node, 5)
    newest, *older = node.store.revisions()
    for revision in older:
        node.store.pin(revision.id, 0)
    node.store.forget(keep=1)
    verified = snapshot("verify")
    assert (verified.exit_code, verified.output) == (0, f"revision {newest.id}: undamaged\n")


async def test_next_restore_completes_one_killed_after_its_download(
    node: Node, snapshot: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = load_application(APPLICATION).digest
    node.archive._facts = lambda cut: replace(facts(cut), application=digest)
    await taken(node, 3)

    def killed(places: Places, _: CheckpointStorage) -> bool:
        if places.whole.is_dir():
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(restore, "finish", killed)
        assert snapshot("restore", "node-b", "--yes").exit_code != 0
    assert (tmp_path / "b" / WHOLE).is_dir()
    finished = snapshot("restore", "node-b")
    assert finished.exit_code == 0, finished.output
    assert "node-b is restored to position 1.7, from an earlier restore." in finished.output
    assert not (tmp_path / "b" / WHOLE).exists()
    with closing(Journal.open(tmp_path / "b/journal", group="test")) as journal:
        assert journal.last == Position(1, 7)
    again = snapshot("restore", "node-b", "--yes").exception
    assert isinstance(again, OnlyCopy)


async def test_directory_emptied_by_reinit_does_not_count_as_a_completed_restore(
    node: Node, snapshot: Run, tmp_path: Path
) -> None:
    digest = load_application(APPLICATION).digest
    node.archive._facts = lambda cut: replace(facts(cut), application=digest)
    await taken(node, 3)
    (tmp_path / "b" / WHOLE).mkdir(parents=True)
    restored = snapshot("restore", "node-b", "--yes")
    assert restored.exit_code == 0, restored.output
    with closing(Journal.open(tmp_path / "b/journal", group="test")) as journal:
        assert journal.last == Position(1, 7)


async def test_restore_under_a_changed_application_advises_to_use_the_former_one(
    engine: Engine, node: Node, snapshot: Run
) -> None:
    """The advice also applies where an older snapshot is damaged: the newer one has the state."""
    await taken(node, 3)
    await taken(node, 4)
    newest, older = node.store.revisions()
    with engine.begin() as connection:
        spoilt = {"id": older.id}
        connection.execute(
            text("UPDATE ha_engine.revision SET manifest = 'x' WHERE id = :id"), spoilt
        )
    refused = snapshot("restore", "node-b", "--yes").exception
    assert isinstance(refused, SnapshotUnfit)
    assert f"revision {newest.id}: the revision was taken under the application app, but" in str(
        refused
    )
    assert "install the application of the snapshot again" in str(refused)
    assert "begin without data" not in str(refused)
