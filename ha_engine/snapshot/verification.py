"""Whether a revision could be restored: every chunk that it names is there, and sound (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ha_engine.errors import ChunkDamaged, RevisionForgotten, SnapshotDamaged
from ha_engine.snapshot.chunks import unpack
from ha_engine.snapshot.files import CHUNKS_TOGETHER, Progress
from ha_engine.snapshot.manifest import Manifest, decode
from ha_engine.snapshot.pinning import pin, pinned
from ha_engine.types import Chunk


class RevisionReader(Protocol):
    """What is asked of the store; see postgres.snapshot_store."""

    def pin(self, revision_id: int, seconds: float) -> bool: ...
    def manifest(self, revision_id: int) -> tuple[bytes, bytes] | None: ...
    def chunks(self, digests: Sequence[bytes]) -> Mapping[bytes, Chunk]: ...


def manifest_of(store: RevisionReader, revision_id: int) -> Manifest:
    """Raises SnapshotDamaged, RevisionForgotten."""
    found = store.manifest(revision_id)
    if found is None:
        raise RevisionForgotten(revision_id)
    return decode(*found)


def damage(store: RevisionReader, revision_id: int, progress: Progress) -> list[str]:
    """One sentence for each file that a restore would miss; none when it is whole.

    ``progress`` is told of bytes as they are in the files. Raises RevisionForgotten: what goes
    with its revision is no damage.
    """
    progress = pinned(store, revision_id, progress)
    try:
        manifest = manifest_of(store, revision_id)
    except SnapshotDamaged as error:
        return [str(error)]
    found = dict(broken(store, list(manifest.digests), progress))
    pin(store, revision_id)
    return list(_files_without(manifest, found))


def _files_without(manifest: Manifest, found: Mapping[bytes, str]) -> Iterator[str]:
    for file in manifest.files:
        for digest in file.chunks:
            if digest in found:
                yield f"{file.path}: {found[digest]}"
                break


def broken(
    store: RevisionReader, digests: Sequence[bytes], progress: Progress
) -> Iterator[tuple[bytes, str]]:
    """The chunks that are not there or not sound, each with what is wrong."""
    for at in range(0, len(digests), CHUNKS_TOGETHER):
        group = digests[at : at + CHUNKS_TOGETHER]
        found = store.chunks(group)
        for digest in group:
            try:
                unpack(found[digest])
            except KeyError:
                yield digest, f"chunk {digest.hex()[:16]} is not there"
            except ChunkDamaged as error:
                yield digest, f"chunk {digest.hex()[:16]} is damaged: {error.reason}"
        progress(sum(chunk.size for chunk in found.values()))
