"""Nodes, journals and databases of other versions."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

from google_crc32c import value as crc32c

from ha_engine.journal.reading import FILE_HEADER_BYTES
from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode, holds
from tests.faults.matrix.scene import SYNC_SECONDS, TAKEOVER_SECONDS, Scene, row
from tests.faults.matrix.world import World
from tests.releases import SEMANTICS, WIRE, release

STRANGE = {
    "wire": (*WIRE, "PROTOCOL_MIN, PROTOCOL_MAX = 98, 99"),
    "batch_semantics": (*SEMANTICS, "BATCH_SEMANTICS = 99"),
}
_VERSION_OFFSET, _CRC_OFFSET = 12, 8


def other_engine(world: World, file: str, before: str, after: str) -> Path:
    """Copy the engine with one line changed; return the directory to run it from."""
    place = world.directory / f"engine-{crc32c(after.encode()):x}"
    return place if place.exists() else release(place, (file, before, after))


def _run_with(node: HostedNode, engine: Path | None) -> None:
    node.kill_everything()
    node.code = engine
    node.start()


def _refused_by_its_peer(change: tuple[str, str, str], scene: Scene) -> None:
    """Both continue to run, and an operator installs the release that fits."""
    seen = len(scene.active.log_text())
    scene.world.undo.append(lambda: _run_with(scene.passive, None))
    _run_with(scene.passive, other_engine(scene.world, *change))
    refused = holds(lambda: "peer refused" in scene.active.log_text()[seen:], TAKEOVER_SECONDS)
    assert refused, "the active did not refuse its peer"
    scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)
    status = scene.active.status()
    assert status is not None
    assert not status["protected"], "a node of another version is in sync"


for what, change in STRANGE.items():
    fault = partial(_refused_by_its_peer, change)
    row(SYNC_SECONDS, operator=True, name=f"passive_of_unknown_{what}")(fault)


@row(2 * SYNC_SECONDS + 1)
def upgrade_of_both_nodes_one_by_one(scene: Scene) -> None:
    """The next release speaks one version more, and each order of the two works together."""
    newer = other_engine(scene.world, *WIRE, "PROTOCOL_MIN, PROTOCOL_MAX = 1, 2")
    for node in scene.chance.sample(scene.world.nodes, 2):
        engine = None if node.code == newer else newer
        _run_with(node, engine)
        scene.world.whole()


@row(SYNC_SECONDS, operator=True)
def journal_of_an_unknown_version(scene: Scene) -> None:
    """The release that wrote it must read it; here its header is put back."""
    node = scene.passive
    node.kill_everything()
    path = scene.chance.choice(node.segments())
    content = bytearray(path.read_bytes())
    former = bytes(content[:FILE_HEADER_BYTES])
    struct.pack_into("<H", content, _VERSION_OFFSET, 99)
    crc = crc32c(bytes(content[_VERSION_OFFSET:FILE_HEADER_BYTES]))
    struct.pack_into("<I", content, _CRC_OFFSET, crc)
    path.write_bytes(content)
    node.refuses("run the engine version that wrote it")
    with path.open("r+b") as file:
        file.write(former)


@row(SYNC_SECONDS, operator=True)
def schema_of_an_unknown_version(scene: Scene) -> None:
    """A running node continues on its connection, and one that starts does not use the database."""
    database, table = scene.world.database, "ha_engine.schema_floor"
    (version,) = database.rows(f"SELECT version FROM {table}")[0]
    restore = f"UPDATE {table} SET version = '{version}'"
    scene.world.undo.append(lambda: database.execute(restore))
    database.execute(f"UPDATE {table} SET version = '9999'")
    scene.passive.kill_everything()
    scene.passive.refuses("serves only engines that know schema version 9999")
    scene.last(scene.chance.uniform(0.0, 2.0))
