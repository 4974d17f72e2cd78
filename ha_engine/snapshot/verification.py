"""Verify that every chunk of a revision exists and is undamaged (RULES.md#i10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from ha_engine.errors import ChunkDamaged, RevisionForgotten, SnapshotDamaged
from ha_engine.snapshot.chunks import unpack
from ha_engine.snapshot.files import Progress, in_portions
from ha_engine.snapshot.manifest import Manifest, decode
from ha_engine.snapshot.pinning import pin, pinned
from ha_engine.types import Chunk, Revision


class RevisionReader(Protocol):
    """The methods of ``postgres.snapshot_store`` that a verification uses."""

    def pin(self, revision_id: int, seconds: float) -> bool: ...
    def manifest(self, revision_id: int) -> tuple[bytes, bytes] | None: ...
    def group_id(self) -> str | None: ...
    def chunks(self, digests: Sequence[bytes]) -> Mapping[bytes, Chunk]: ...
    def distrust(self, damaged: Chunk) -> None: ...


def manifest_of(store: RevisionReader, revision: Revision) -> Manifest:
    """The verified manifest of ``revision``.

    Raises SnapshotDamaged when the manifest is damaged or belongs to another revision or group.
    Raises RevisionForgotten when the revision is gone.
    """
    found = store.manifest(revision.id)
    if found is None:
        raise RevisionForgotten(revision.id)
    manifest, group_id = decode(*found), store.group_id()
    if manifest.position != revision.position:
        raise SnapshotDamaged(
            f"the manifest is for {manifest.position}, but the revision is at {revision.position}"
        )
    if group_id is not None and manifest.group_id not in ("", group_id):
        raise SnapshotDamaged(
            f"the revision belongs to group id {manifest.group_id}, "
            f"but this group has the id {group_id}"
        )
    return manifest


def verify(
    store: RevisionReader,
    revision: Revision,
    progress: Progress,
    kept_problems: Callable[[Manifest], list[str]] = lambda _: [],
) -> list[str]:
    """Check a revision, and return one sentence for each file that could not be restored.

    The function ``progress`` is called with the numbers of uncompressed bytes. The function
    ``kept_problems`` checks the files that are not in the database. Raises
    RevisionForgotten when the revision is removed during the check, because the removed chunks are
    not damaged.
    """
    progress = pinned(store, revision.id, progress)
    try:
        manifest = manifest_of(store, revision)
    except SnapshotDamaged as error:
        return [str(error)]
    found = distrust_damaged(store, manifest, progress)
    pin(store, revision.id)
    return [*_files_without(manifest, found), *kept_problems(manifest)]


def distrust_damaged(
    store: RevisionReader, manifest: Manifest, progress: Progress
) -> dict[bytes, str]:
    """The digests of missing or damaged chunks, each with a description of the fault.

    Also marks each damaged chunk in the database, so that the next snapshot stores the chunk again
    (RULES.md#i10).
    """
    wrong = dict[bytes, str]()
    for portion, found in in_portions(manifest.digests, store.chunks, progress):
        for digest in portion:
            if reason := _what_is_wrong(found.get(digest)):
                wrong[digest] = f"chunk {digest.hex()[:16]} {reason}"
                if digest in found:
                    store.distrust(found[digest])
        progress(sum(chunk.size for chunk in found.values()))
    return wrong


def _what_is_wrong(chunk: Chunk | None) -> str | None:
    if chunk is None:
        return "is missing"
    try:
        unpack(chunk)
    except ChunkDamaged as error:
        return f"is damaged: {error.reason}"
    return None


def _files_without(manifest: Manifest, chunks: Mapping[bytes, str]) -> Iterator[str]:
    for file in manifest.files:
        for digest in file.chunks:
            if digest in chunks:
                yield f"{file.path}: {chunks[digest]}"
                break
