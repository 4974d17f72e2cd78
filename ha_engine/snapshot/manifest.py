"""The manifest of a revision: its origin and its files.

A manifest is stored as compressed JSON with a BLAKE2b digest beside it. A restore uses it only if
both agree (RULES.md#i10).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ha_engine.errors import SnapshotDamaged
from ha_engine.snapshot.chunks import digest_of
from ha_engine.types import Position

VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``path`` is relative to a node's data directory; ``chunks`` are digests, in order."""

    path: str
    size: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CapturedQuery:
    """The state of a query after its batch ``number``, whose output has ``digest`` (RULES.md#i6).

    ``lineage`` is that of the state, as QueryBase has it. ``digest`` is empty if the query had run
    no batch, or is not compared.
    """

    query: str
    number: int
    lineage: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot at ``position``: no query needs a record up to there (RULES.md#r28).

    ``application`` is the digest of the application, ``runtime`` names versions by component.
    """

    group_id: str
    journal_id: str
    position: Position
    application: str
    runtime: Mapping[str, str]
    queries: tuple[CapturedQuery, ...]
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def digests(self) -> dict[bytes, None]:
        """Every chunk once, in the order of the files."""
        return dict.fromkeys(digest for file in self.files for digest in file.chunks)


def encode(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the bytes, and their digest."""
    tree = {
        "version": VERSION,
        "group_id": manifest.group_id,
        "journal_id": manifest.journal_id,
        "position": [manifest.position.epoch, manifest.position.sequence],
        "application": manifest.application,
        "runtime": dict(manifest.runtime),
        "queries": [[q.query, q.number, q.lineage, q.digest] for q in manifest.queries],
        "files": [[f.path, f.size, [d.hex() for d in f.chunks]] for f in manifest.files],
    }
    encoded = gzip.compress(json.dumps(tree).encode(), mtime=0)
    return encoded, digest_of(encoded)


def decode(encoded: bytes, digest: bytes) -> Manifest:
    """Decode and verify a manifest.

    Raises SnapshotDamaged, also when another version of the engine wrote it (RULES.md#r32).
    """
    if digest_of(encoded) != digest:
        raise SnapshotDamaged("its manifest does not match its digest")
    try:
        tree = json.loads(gzip.decompress(encoded))
        if tree["version"] == VERSION:
            return _from_tree(tree)
        reason = f"its manifest has version {tree['version']}, but this engine reads {VERSION}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotDamaged("its manifest cannot be read") from error
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
    )


def _file(path: str, size: int, chunks: list[str]) -> StoredFile:
    """Raises ValueError for a path that leads out of the directory: the engine writes none."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError(path)
    return StoredFile(path, size, tuple(bytes.fromhex(one) for one in chunks))
