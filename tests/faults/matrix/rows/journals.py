"""Journals that are damaged, foreign or lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ha_engine.journal import Journal
from ha_engine.journal.reading import FILE_HEADER_BYTES
from ha_engine.journal.segment import segment_paths
from tests.faults.matrix.hosts import HostedNode, holds
from tests.faults.matrix.scene import (
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


def _newest_segment(node: HostedNode) -> Path:
    return segment_paths(node.data_dir / "journal")[-1]


@row(SYNC_SECONDS)
def torn_write_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    scene.passive.kill_everything()
    path = _newest_segment(scene.passive)
    cut = scene.chance.randrange(1, 400)
    os.truncate(path, max(FILE_HEADER_BYTES, path.stat().st_size - cut))


@row(SYNC_SECONDS)
def zeros_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """A crash leaves them where the file grew and its content did not reach the disk."""
    scene.passive.kill_everything()
    with _newest_segment(scene.passive).open("ab") as file:
        file.write(bytes(scene.chance.randrange(1, 10_000)))


@row(SYNC_SECONDS, operator=True)
def garbage_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """No crash writes that, so the node refuses its journal (RULES.md#r31)."""
    scene.passive.kill_everything()
    with _newest_segment(scene.passive).open("ab") as file:
        file.write(bytes(range(1, scene.chance.randrange(60, 256))))
    scene.passive.refuses("is damaged at byte")
    scene.passive.reinit()


@row(SYNC_SECONDS, operator=True)
def flipped_bit_in_the_passives_journal(scene: Scene) -> None:
    """The node refuses its journal, and an operator lets it begin with an empty one."""
    node = scene.passive
    node.kill_everything()
    path = _newest_segment(node)
    content = bytearray(path.read_bytes())
    # Behind it there is a whole record, so that no node may take it for a torn write.
    at = scene.chance.randrange(FILE_HEADER_BYTES, len(content) // 2)
    content[at] ^= 1 << scene.chance.randrange(8)
    path.write_bytes(content)
    node.refuses("is damaged at byte")
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
