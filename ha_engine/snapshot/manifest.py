"""The manifest of a revision describes the origin and the files of the revision.

A manifest is stored as compressed JSON, together with a BLAKE2b digest. A restore uses a manifest
only if the digest matches the compressed JSON (RULES.md#i10).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ha_engine.errors import SnapshotDamaged
from ha_engine.snapshot.chunks import digest_of
from ha_engine.types import Position

VERSION_MIN, VERSION = 1, 2
"""The release before reads version 1, in which the database has all files. A manifest that names no
file elsewhere still has that version."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a snapshot, stored as chunks in the database.

    ``path`` is relative to a node's data directory. ``chunks`` has the digests of the file's
    chunks, in order.
    """

    path: str
    size: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a snapshot that is an object beside the checkpoints of a group.

    ``path`` is relative to a node's data directory, like that of a StoredFile. ``key`` is relative
    to the place of the group's checkpoints. ``version`` is the ETag of the object.
    """

    path: str
    size: int
    key: str
    version: str


@dataclass(frozen=True, slots=True)
class CapturedQuery:
    """The state of a query after its batch ``number``.

    ``lineage`` is the lineage of the state, as in QueryBase. ``digest`` is the digest of the
    batch's output (RULES.md#i6). ``digest`` is empty if the query had run no batch, or if nodes do
    not compare the query's digests.
    """

    query: str
    number: int
    lineage: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a snapshot at ``position`` in the journal.

    No query needs a record at or before ``position`` (RULES.md#r28). ``application`` is the digest
    of the application, and ``archive`` the id of the deployed archive that has it, or None.
    ``runtime`` has the version of each software component. ``kept_at`` is the
    URL of the place with the files ``kept``.
    """

    group_id: str
    journal_id: str
    position: Position
    application: str
    runtime: Mapping[str, str]
    queries: tuple[CapturedQuery, ...]
    files: tuple[StoredFile, ...]
    kept_at: str = ""
    kept: tuple[KeptFile, ...] = ()
    archive: str | None = None

    @property
    def size(self) -> int:
        return _size(self.files) + _size(self.kept)

    def below(self, directory: str) -> list[StoredFile]:
        return [file for file in self.files if file.path.startswith(f"{directory}/")]

    def kept_below(self, directory: str) -> list[KeptFile]:
        return [file for file in self.kept if file.path.startswith(f"{directory}/")]

    def size_below(self, directory: str) -> int:
        return _size(self.below(directory)) + _size(self.kept_below(directory))

    @property
    def digests(self) -> dict[bytes, None]:
        """The digest of every chunk once, in the order of the files."""
        return dict.fromkeys(digest for file in self.files for digest in file.chunks)


def _size(files: Iterable[StoredFile | KeptFile]) -> int:
    return sum(file.size for file in files)


def encode(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the encoded manifest, and the digest of the encoded manifest."""
    tree = {
        "version": VERSION if manifest.kept else VERSION_MIN,
        "group_id": manifest.group_id,
        "journal_id": manifest.journal_id,
        "position": [manifest.position.epoch, manifest.position.sequence],
        "application": manifest.application,
        "runtime": dict(manifest.runtime),
        "queries": [[q.query, q.number, q.lineage, q.digest] for q in manifest.queries],
        "files": [[f.path, f.size, [d.hex() for d in f.chunks]] for f in manifest.files],
        "kept_at": manifest.kept_at,
        "archive": manifest.archive,
        "kept": [[f.path, f.size, f.key, f.version] for f in manifest.kept],
    }
    encoded = gzip.compress(json.dumps(tree).encode(), mtime=0)
    return encoded, digest_of(encoded)


def decode(encoded: bytes, digest: bytes) -> Manifest:
    """Decode and verify a manifest.

    Raises SnapshotDamaged when the manifest is damaged or has another format version
    (RULES.md#r32).
    """
    if digest_of(encoded) != digest:
        raise SnapshotDamaged("the manifest does not match its digest")
    try:
        tree = json.loads(gzip.decompress(encoded))
        if VERSION_MIN <= tree["version"] <= VERSION:
            return _from_tree(tree)
        reason = f"the manifest has version {tree['version']}, but this engine reads {VERSION}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotDamaged("the manifest cannot be read") from error
    raise SnapshotDamaged(reason)


def _from_tree(tree: Any) -> Manifest:
    return Manifest(
        tree["group_id"],
        tree["journal_id"],
        Position(*tree["position"]),
        tree["application"],
        tree["runtime"],
        tuple(CapturedQuery(*query) for query in tree["queries"]),
        tuple(_file(*file) for file in tree["files"]),
        tree.get("kept_at", ""),
        tuple(KeptFile(*file) for file in tree.get("kept", ())),
        tree.get("archive"),
    )


def _file(path: str, size: int, chunks: list[str]) -> StoredFile:
    """A file of the manifest, from its JSON.

    Raises ValueError for a path outside the data directory, because the engine never writes such a
    path.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError(path)
    return StoredFile(path, size, tuple(bytes.fromhex(one) for one in chunks))
