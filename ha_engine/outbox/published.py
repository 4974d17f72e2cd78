"""Keep the newest published batches of each query for observers, within a bound.

The outbox deletes a batch once every sink has it. Before that, ``keep`` gives the batch's file a
second name, ``<directory>/<query>/<n>.<rows>.arrow``, so nothing is copied. These files are not
durable, since no decision of a node depends on them: after a loss of power an observer may miss a
batch, and it says so.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from ha_engine.outbox.batch_file import whole_length
from ha_engine.outbox.query_outbox import OutboxBatch
from ha_engine.system.files import OS_FILES, Files, make_directory

_NAME = re.compile(r"(\d+)\.(\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """A batch that every sink has. ``bytes`` is the size of its file at ``path``."""

    number: int
    rows: int
    bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The Arrow IPC file of a batch, and its CRC32C, which is None in a file of an earlier
    version."""

    ipc: bytes
    crc32c: int | None


class PublishedBatches:
    """The newest published batches of all queries, below ``directory``; thread-safe.

    Each query keeps at most ``batches_max`` batches, whose files have at most ``bytes_max`` bytes.
    The constructor and ``keep`` block on small file operations. All methods may raise OSError.
    """

    def __init__(
        self, directory: Path, batches_max: int, bytes_max: int, files: Files = OS_FILES
    ) -> None:
        self._directory, self._files = directory, files
        self.batches_max, self._bytes_max = batches_max, bytes_max
        self._lock = threading.Lock()
        self._by_query: dict[str, list[PublishedBatch]] = {}
        for place in sorted(directory.iterdir()) if directory.is_dir() else ():
            self._by_query[place.name] = _found(place)
            self._drop_oldest(place.name)

    def keep(self, query: str, number: int, batch: OutboxBatch) -> None:
        """Keep a batch that the outbox is about to delete.

        A batch that does not follow the newest kept one is ignored: it was made again after a
        forced failover, and the sinks have the first one.
        """
        with self._lock:
            kept = self._by_query.setdefault(query, [])
            too_large = not self.batches_max or batch.bytes > self._bytes_max
            if too_large or (kept and number <= kept[-1].number):
                return
            place = self._directory / query
            make_directory(place, files=self._files, durable=False)
            path = place / f"{number}.{batch.rows}.arrow"
            self._files.unlink(path, missing_ok=True)
            self._files.link(batch.path, path)
            kept.append(PublishedBatch(number, batch.rows, batch.bytes, path))
            self._drop_oldest(query)

    def after(self, query: str, number: int) -> PublishedBatch | None:
        """The oldest kept batch of ``query`` above ``number``, or None."""
        with self._lock:
            kept = self._by_query.get(query, [])
            return next((batch for batch in kept if batch.number > number), None)

    def read(self, batch: PublishedBatch) -> BatchContent:
        """Read a kept batch. Raises FileNotFoundError if newer batches have displaced it
        meanwhile."""
        with self._files.reader(batch.path) as file:
            content = file.readall()
        length, crc32c = whole_length(content)
        return BatchContent(content[:length], crc32c)

    def _drop_oldest(self, query: str) -> None:
        kept = self._by_query[query]
        while kept and (
            len(kept) > self.batches_max or sum(one.bytes for one in kept) > self._bytes_max
        ):
            self._files.unlink(kept.pop(0).path, missing_ok=True)


def _found(place: Path) -> list[PublishedBatch]:
    matches = ((_NAME.fullmatch(path.name), path) for path in place.iterdir())
    return sorted(
        (
            PublishedBatch(int(match[1]), int(match[2]), path.stat().st_size, path)
            for match, path in matches
            if match
        ),
        key=lambda batch: batch.number,
    )
