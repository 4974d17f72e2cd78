"""Journals that are damaged, foreign or lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ha_engine.journal import Journal
from ha_engine.journal.reading import FILE_HEADER_BYTES
from ha_engine.snapshot import base_file
from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.needs import SEGMENTS, SPARK
from tests.faults.matrix.rows.snapshots import send_segments, take_snapshot
from tests.faults.matrix.scene import (
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)

DAMAGED = "is damaged at byte"


@row(SYNC_SECONDS)
def torn_write_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    scene.passive.kill_everything()
    path = scene.passive.segments()[-1]
    cut = scene.chance.randrange(1, 400)
    os.truncate(path, max(FILE_HEADER_BYTES, path.stat().st_size - cut))


@row(SYNC_SECONDS)
def zeros_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """A crash leaves them where the file grew and its content did not reach the disk."""
    scene.passive.kill_everything()
    with scene.passive.segments()[-1].open("ab") as file:
        file.write(bytes(scene.chance.randrange(1, 10_000)))


@row(SYNC_SECONDS, operator=True)
def garbage_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """No crash writes that, so the node refuses its journal (RULES.md#r31)."""
    scene.passive.kill_everything()
    with scene.passive.segments()[-1].open("ab") as file:
        file.write(bytes(range(1, scene.chance.randrange(60, 256))))
    scene.passive.refuses(DAMAGED)
    scene.passive.reinit()


@row(SYNC_SECONDS, operator=True)
def flipped_bit_in_the_passives_journal(scene: Scene) -> None:
    """The node refuses its journal, and an operator lets it begin with an empty one."""
    node = scene.passive
    node.kill_everything()
    path = node.segments()[-1]
    content = bytearray(path.read_bytes())
    # Behind it there is a whole record, so that no node may take it for a torn write.
    at = scene.chance.randrange(FILE_HEADER_BYTES, len(content) // 2)
    content[at] ^= 1 << scene.chance.randrange(8)
    path.write_bytes(content)
    node.refuses(DAMAGED)
    node.reinit()


@row(SYNC_SECONDS)
def journal_of_another_group(scene: Scene) -> None:
    """The node refuses it; then its own is put back."""
    node = scene.passive
    node.kill_everything()
    journal, aside = node.data_dir / "journal", node.data_dir / "aside"
    journal.rename(aside)
    Journal.open(journal, group="another").close()
    node.refuses("another")
    shutil.rmtree(journal)
    aside.rename(journal)


@row(SYNC_SECONDS)
def passive_loses_its_disk(scene: Scene) -> None:
    scene.passive.kill_everything()
    shutil.rmtree(scene.passive.data_dir)


@row(HOST_SECONDS)
def active_loses_its_disk(scene: Scene) -> None:
    scene.active.kill_everything()
    shutil.rmtree(scene.active.data_dir)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


# -- of a running node -----------------------------------------------------------------------------


def _flip(scene: Scene, path: Path, lowest: int = 0) -> None:
    """Flip a bit in the first half of a file, which a process may use."""
    with path.open("r+b") as file:
        at = scene.chance.randrange(lowest, max(lowest + 1, path.stat().st_size // 2))
        file.seek(at)
        flipped = file.read(1)[0] ^ 1 << scene.chance.randrange(8)
        file.seek(at)
        file.write(bytes([flipped]))


@row(HOST_SECONDS, operator=True)
def flipped_bit_in_the_journal_of_the_running_active(scene: Scene) -> None:
    """Nobody reads the old record until the next start, when the passive takes over."""
    _flip(scene, scene.active.segments()[-1], lowest=FILE_HEADER_BYTES)
    scene.last(scene.chance.uniform(0.0, 2.0))
    scene.active.refuses(DAMAGED, scene.active.kill_node)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    scene.active.reinit()


@row(SYNC_SECONDS, operator=True)
def flipped_bit_in_the_journal_of_the_running_passive(scene: Scene) -> None:
    _flip(scene, scene.passive.segments()[-1], lowest=FILE_HEADER_BYTES)
    scene.passive.refuses(DAMAGED, scene.passive.kill_node)
    scene.passive.reinit()


@row(SYNC_SECONDS, operator=True)
def cut_identity_of_the_passives_journal(scene: Scene) -> None:
    node = scene.passive
    node.kill_everything()
    identity = node.data_dir / "journal" / "identity.json"
    os.truncate(identity, scene.chance.randrange(identity.stat().st_size - 1))
    node.refuses("the file is not a journal identity")
    node.reinit()


def _roll(scene: Scene) -> None:
    """Fill segments until both journals have three that are whole."""
    send_segments(scene)
    assert holds(
        lambda: min(len(node.segments()) for node in scene.world.nodes) >= 4, TAKEOVER_SECONDS
    )


@row(SYNC_SECONDS, SEGMENTS, operator=True)
def deleted_segment_of_the_running_passive(scene: Scene) -> None:
    _roll(scene)
    scene.chance.choice(scene.passive.segments()[1:-1]).unlink()
    scene.passive.refuses(DAMAGED, scene.passive.kill_node)
    scene.passive.reinit()


@row(HOST_SECONDS, SEGMENTS, operator=True)
def deleted_segment_of_the_running_active(scene: Scene) -> None:
    _roll(scene)
    scene.chance.choice(scene.active.segments()[1:-1]).unlink()
    scene.last(scene.chance.uniform(0.0, 1.0))
    scene.active.refuses(DAMAGED, scene.active.kill_node)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    scene.active.reinit()


@row(SYNC_SECONDS, SEGMENTS, operator=True)
def swapped_segments_of_the_passive(scene: Scene) -> None:
    _roll(scene)
    node = scene.passive
    node.kill_everything()
    one, other = scene.chance.sample(node.segments()[:-1], 2)
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    node.refuses(DAMAGED)
    node.reinit()


@row(SYNC_SECONDS, SEGMENTS, operator=True)
def flipped_bit_in_the_base_of_the_passive(scene: Scene) -> None:
    """The base has what the trimmed records said, such as the producers' sequences."""
    take_snapshot(scene)
    node = scene.passive
    node.kill_everything()
    _flip(scene, node.data_dir / "journal" / base_file.NAME)
    node.refuses(f"{base_file.NAME} {DAMAGED}")
    node.reinit()


@row(SYNC_SECONDS)
def passive_loses_its_checkpoints(scene: Scene) -> None:
    """Its query begins again, and gets the same batches from the journal."""
    scene.passive.kill_everything()
    shutil.rmtree(scene.passive.data_dir / "checkpoints")


@row(SYNC_SECONDS, SEGMENTS)
def passive_loses_its_checkpoints_after_a_trim(scene: Scene) -> None:
    """The records are gone from the journal, so the state comes from the snapshot."""
    take_snapshot(scene)
    scene.passive.kill_everything()
    shutil.rmtree(scene.passive.data_dir / "checkpoints")


@row(SYNC_SECONDS, SPARK)
def damaged_checkpoint_of_the_passive(scene: Scene) -> None:
    """Spark cannot read its newest offsets or commits."""
    kind = scene.chance.choice(("offsets", "commits"))

    def logs() -> list[Path]:
        return [*(scene.passive.data_dir / "checkpoints").rglob(f"{kind}/[0-9]*")]

    assert holds(logs, TAKEOVER_SECONDS), "the passive has made no batch"
    scene.passive.kill_everything()
    _overwrite(max(logs(), key=lambda path: int(path.name)))


def _overwrite(path: Path) -> None:
    """Change the middle of a file, so that no padding hides it."""
    content = path.read_bytes()
    begin, end = len(content) // 4, 3 * len(content) // 4
    changed = bytes(byte ^ 0xFF for byte in content[begin:end])
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(changed)


@row(HOST_SECONDS + TTL_SECONDS, operator=True)
def damaged_batch_in_the_outbox_of_the_active(scene: Scene) -> None:
    """The sink is away, so batches wait. The other node publishes its own copy of the batch."""
    node, database = scene.active, scene.world.database
    with scene.world.without_database():
        database.stop()
        scene.last(TTL_SECONDS)
        waiting = sorted((node.data_dir / "outbox" / "copies").glob("*.arrow"))
        _overwrite(scene.chance.choice(waiting))
    node.refuses("its checksum is wrong", database.start)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    node.reinit()
