"""Restores from snapshots that are whole, damaged or incomplete.

Both nodes have trimmed their journals by a snapshot, so that a node without a disk needs one.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from ha_engine.query.checkpoints import STAMP_FILE
from ha_engine.system.fsync import boot_id
from tests.faults.matrix.hosts import HostedNode, holds
from tests.faults.matrix.load import STREAM
from tests.faults.matrix.needs import SEGMENTS
from tests.faults.matrix.rows.crash_points import anything, kill_before
from tests.faults.matrix.rows.network import both_ways
from tests.faults.matrix.scene import (
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)

EVENT_BYTES, EVENTS, REQUESTS = 1000, 30, 8
"""Some segments of the journal."""
RESTORED = "restored snapshot replaced journal"
STATE_RESTORED = "lost query state restored from a snapshot"
UNUSABLE = "revision cannot be restored"
OF_THE_NEWEST_ONLY = """
digest IN (SELECT digest FROM ha_engine.revision_chunk GROUP BY digest
           HAVING min(revision_id) = (SELECT max(id) FROM ha_engine.revision))
"""
DAMAGES = {
    "corrupt": "UPDATE ha_engine.chunk SET stored = overlay(stored PLACING '\\x00ff'"
    " FROM greatest(1, length(stored) / 2)) WHERE {chunks}",
    "missing": "DELETE FROM ha_engine.chunk WHERE {chunks}",
    "swapped": "UPDATE ha_engine.chunk AS one SET stored = other.stored FROM ha_engine.chunk AS"
    " other WHERE one.digest <> other.digest AND one.{chunks}",
}


def send_segments(scene: Scene) -> None:
    """Send events that fill some segments."""
    text = f"bulk-{scene.chance.randrange(1 << 30)}-".ljust(EVENT_BYTES, "x")
    for _ in range(REQUESTS):
        events = [scene.log.sent(text) for _ in range(EVENTS)]
        sent = scene.active.send(STREAM, [{"id": event, "text": text} for event in events])
        if sent.is_success:
            for event in events:
                scene.log.acked(event, sent.json()["position"]["epoch"])


def base_of(node: HostedNode) -> int:
    status = node.status()
    return 0 if status is None else int(status["journal"]["base_sequence"])


def store_snapshot(scene: Scene) -> None:
    """Take a snapshot after some segments; return when it is visible."""
    send_segments(scene)
    former = newest_revision(scene)
    assert scene.active.http.post("/v1/snapshot").is_success
    visible = holds(lambda: newest_revision(scene) != former, TAKEOVER_SECONDS)
    assert visible, "no snapshot became visible"


def newest_revision(scene: Scene) -> object:
    newest = "SELECT max(id) FROM ha_engine.revision WHERE visible_at IS NOT NULL"
    return scene.world.database.rows(newest)


def take_snapshot(scene: Scene) -> None:
    """Take a snapshot after some segments; return when a node without a disk needs one."""
    store_snapshot(scene)
    nodes = (scene.active, scene.passive)
    trimmed = holds(lambda: all(base_of(node) > 0 for node in nodes), TAKEOVER_SECONDS)
    assert trimmed, "the journals were not trimmed"


def _damage(kind: str, chunks: str, scene: Scene) -> None:
    """Change chunks behind the back of the constraints, as a fault of the database does."""
    statement = DAMAGES[kind].format(chunks=chunks)
    scene.world.database.execute(f"SET session_replication_role = replica; {statement}")


def _lose_disk(node: HostedNode) -> int:
    """Restart the node without its data; return where its log continues."""
    seen = len(node.log_text())
    node.kill_everything()
    shutil.rmtree(node.data_dir)
    node.start()
    return seen


def _says(node: HostedNode, said: str, since: int) -> bool:
    return said in node.log_text()[since:]


def _require_restore(node: HostedNode, since: int) -> None:
    restored = holds(lambda: _says(node, RESTORED, since), 3 * TAKEOVER_SECONDS)
    assert restored, f"{node.name} restored no snapshot"


@row(SYNC_SECONDS, SEGMENTS)
def restore_a_lost_disk(scene: Scene) -> None:
    take_snapshot(scene)
    _require_restore(scene.passive, _lose_disk(scene.passive))


@row(HOST_SECONDS, SEGMENTS)
def restore_a_lost_disk_of_the_active(scene: Scene) -> None:
    """The former active may return before or after the other node has taken over."""
    take_snapshot(scene)
    seen = _lose_disk(scene.active)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    _require_restore(scene.active, seen)


@row(SYNC_SECONDS, SEGMENTS)
def kill_passive_in_its_restore(scene: Scene) -> None:
    """The next start completes the restore, or begins it again."""
    take_snapshot(scene)
    scene.drop(*both_ways("{active}", "{passive}"))  # the restore waits for the active
    _lose_disk(scene.passive)
    assert holds(scene.passive.status, TAKEOVER_SECONDS)
    steps = ("rename,fsync,fdatasync,mkdir", anything, 10)
    kill_before(scene.passive, steps, scene, begin=scene.drop)


@row(SYNC_SECONDS, SEGMENTS)
def power_loss_of_passive_for_two_snapshots(scene: Scene) -> None:
    """The active still has the records that the passive lacks, but each snapshot is of batches that
    the passive has not run. So no snapshot fits the outbox of the passive, which restores one in
    place of everything. An older snapshot fits if an earlier restore has pinned it."""
    take_snapshot(scene)
    node = scene.passive
    node.kill_everything()
    store_snapshot(scene)
    store_snapshot(scene)
    lose_checkpoint = scene.chance.choice((shutil.rmtree, _leave_an_empty_checkpoint))
    for stamp in list((node.data_dir / "checkpoints").glob(f"*/{STAMP_FILE}")):
        lose_checkpoint(stamp.parent)
    seen = len(node.log_text())
    node.start()
    restored = holds(
        lambda: any(_says(node, said, seen) for said in (RESTORED, STATE_RESTORED)),
        3 * TAKEOVER_SECONDS,
    )
    assert restored, f"{node.name} restored no state"


def _leave_an_empty_checkpoint(checkpoint: Path) -> None:
    """Leave what a loss of power leaves that came before the first writeback."""
    for written in ("offsets", "commits", "state"):
        shutil.rmtree(checkpoint / written, ignore_errors=True)
    stamp = checkpoint / STAMP_FILE
    stamp.write_text(stamp.read_text().replace(boot_id(), "an earlier boot"))


def _restore_an_older_one(kind: str, scene: Scene) -> None:
    """The older revision is whole, and the active has all records after it (RULES.md#r29)."""
    take_snapshot(scene)
    take_snapshot(scene)
    _damage(kind, OF_THE_NEWEST_ONLY, scene)
    seen = _lose_disk(scene.passive)
    _require_restore(scene.passive, seen)
    assert _says(scene.passive, UNUSABLE, seen), "a damaged chunk was used"


def _restore_none(kind: str, scene: Scene) -> None:
    """No revision is whole, so the node waits until an operator takes a new snapshot."""
    take_snapshot(scene)
    _damage(kind, "digest IS NOT NULL", scene)
    node = scene.passive
    seen = _lose_disk(node)
    unusable = holds(lambda: _says(node, UNUSABLE, seen), 2 * TAKEOVER_SECONDS)
    assert unusable, "no damage was found"
    assert not _says(node, RESTORED, seen), "a damaged chunk was used"
    scene.active.command("snapshot", "verify", "-c", str(scene.active.config_path))
    assert scene.active.http.post("/v1/snapshot").is_success
    _require_restore(node, seen)


for kind in DAMAGES:
    fault = partial(_restore_an_older_one, kind)
    row(SYNC_SECONDS, SEGMENTS, name=f"newest_snapshot_has_{kind}_chunks")(fault)
    fault = partial(_restore_none, kind)
    row(SYNC_SECONDS, SEGMENTS, operator=True, name=f"all_snapshots_have_{kind}_chunks")(fault)
