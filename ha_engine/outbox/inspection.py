"""Inspects an outbox without changing a byte, also while a node uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox.batch_file import DIGEST_BYTES, digest_of_table, read_batch_file
from ha_engine.outbox.query_outbox import DROPPED, batch_paths, read_digest


@dataclass(frozen=True, slots=True)
class Report:
    """The number of batches in an outbox, their bytes, and a sentence for each damage."""

    batches: int
    bytes: int
    damage: tuple[str, ...]


def survey(directory: Path, on_batch: Callable[[int], None] = lambda _: None) -> Report:
    """Verify that no batch is missing, and the checksum and the digest of each batch.

    ``on_batch`` is called with the number of batches that are verified. Raises OSError.
    """
    batches, size, damage = 0, 0, list[str]()
    places = (path for path in directory.iterdir() if path.is_dir())
    for place in sorted(path for path in places if not path.name.startswith(DROPPED)):
        damage += _gaps(place)
        for number, path in batch_paths(place):
            # A running node may trim the batch meanwhile.
            with suppress(FileNotFoundError):
                size += path.stat().st_size
                damage += _damage(path, place / f"{number}.digest")
                batches += 1
                on_batch(batches)
    return Report(batches, size, tuple(damage))


def _gaps(place: Path) -> list[str]:
    # A running node may trim batches during a listing, which then seems to have a gap. The next
    # listing has no such gap.
    missing = _missing(place)
    if missing:
        missing &= _missing(place)
    return [f"batch {number} is missing in {place}" for number in sorted(missing)]


def _missing(place: Path) -> set[int]:
    numbers = {number for number, _ in batch_paths(place)}
    return set(range(min(numbers), max(numbers))) - numbers if numbers else set()


def _damage(path: Path, digest_path: Path) -> list[str]:
    """The damage of a batch, each defect as a sentence. Raises FileNotFoundError if the batch is
    gone."""
    try:
        table = read_batch_file(path)
    except OutboxDamaged as error:
        path.stat()
        return [str(error).partition("; ")[0]]
    digest = read_digest(digest_path) if digest_path.exists() else None
    # A longer or shorter text is no digest of this version.
    comparable = digest is not None and len(digest) == 2 * DIGEST_BYTES
    if comparable and digest != digest_of_table(table):
        return [f"the rows of {path} do not match their digest"]
    return []
