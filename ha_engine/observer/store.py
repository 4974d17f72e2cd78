"""Keep the newest batches of each query on disk, within a bound, and the last state of the nodes.

A batch is the file ``<directory>/output/<query>/<n>.<rows>.arrow``. The file ``state.json`` has the
group, the last batch of each query, the batches that were missed, and the last answers of the
nodes. No file is fsynced: the observer gets again what a loss of power took, or says that it missed
it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from ha_engine.observer.next_batch import Output
from ha_engine.system.disk import disk

log = structlog.get_logger(__name__)

_NAME = re.compile(r"(\d+)\.(\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """A batch on disk. ``received_at`` is a Unix time."""

    number: int
    rows: int
    bytes: int
    received_at: float
    path: Path


@dataclass
class QueryProgress:
    """The progress of the observer with a query.

    ``last`` is the last batch that it has or missed, or None before the first one. ``missed``
    counts the batches that no node had any more.
    """

    last: int | None = None
    received: int = 0
    missed: int = 0
    last_missed: str | None = None


class OutputStore:
    """The newest batches of all queries below ``directory``; thread-safe.

    Each query keeps at most ``rows_max`` rows in files of at most ``bytes_max`` bytes, and at least
    its newest batch. Methods that change it block on small file operations, and raise DiskFailed.
    """

    def __init__(self, directory: Path, rows_max: int, bytes_max: int) -> None:
        self._directory, self._rows_max, self._bytes_max = directory, rows_max, bytes_max
        self._lock = threading.Lock()
        self.group_id: str | None = None
        self.progress: dict[str, QueryProgress] = {}
        self.nodes: dict[str, Any] = {}
        """By node, its last answers and their time, as they were when the state was last saved."""
        self._kept: dict[str, list[KeptBatch]] = {}
        with disk(directory):
            (directory / "output").mkdir(parents=True, exist_ok=True)
            self._load()

    def batches(self, query: str) -> list[KeptBatch]:
        """The kept batches of a query, oldest first."""
        with self._lock:
            return list(self._kept.get(query, ()))

    def begin_group(self, group_id: str) -> None:
        """Forget the output of any other group."""
        with self._lock, disk(self._directory):
            if self.group_id is not None:
                log.warning("the nodes are of another group", was=self.group_id, now=group_id)
                for kept in self._kept.values():
                    _delete(kept, 0)
            self.group_id, self.progress, self._kept = group_id, {}, {}

    def put(self, query: str, output: Output) -> None:
        """Keep the next batch of a query, and delete what exceeds the bound."""
        place = self._directory / "output" / query
        path = place / f"{output.number}.{output.rows}.arrow"
        with self._lock, disk(self._directory):
            place.mkdir(exist_ok=True)
            draft = place / "draft"
            draft.write_bytes(output.ipc)
            draft.rename(path)
            kept = self._kept.setdefault(query, [])
            kept.append(_batch(output.number, output.rows, path))
            progress = self.progress.setdefault(query, QueryProgress())
            progress.last, progress.received = output.number, progress.received + 1
            while len(kept) > 1 and self._exceeds(kept):
                _delete(kept, len(kept) - 1)

    def miss(self, query: str, first: int, last: int) -> None:
        """Note that the batches from ``first`` to ``last`` cannot be had any more."""
        with self._lock:
            progress = self.progress.setdefault(query, QueryProgress())
            progress.last, progress.missed = last, progress.missed + last - first + 1
            progress.last_missed = f"{first}-{last}"
        log.warning("batches missed", query=query, first=first, last=last)

    def save(self, nodes: dict[str, Any]) -> None:
        """Write the state of the observer and of ``nodes``."""
        with self._lock, disk(self._directory):
            progress = {query: vars(one) for query, one in self.progress.items()}
            tree = {"group_id": self.group_id, "queries": progress, "nodes": nodes}
            draft = self._directory / "state.tmp"
            draft.write_text(json.dumps(tree))
            draft.rename(self._directory / "state.json")

    def _exceeds(self, kept: list[KeptBatch]) -> bool:
        rows, size = sum(one.rows for one in kept), sum(one.bytes for one in kept)
        return rows > self._rows_max or size > self._bytes_max

    def _load(self) -> None:
        try:
            tree = json.loads((self._directory / "state.json").read_text())
            self.group_id, self.nodes = tree["group_id"], tree["nodes"]
            self.progress = {name: QueryProgress(**one) for name, one in tree["queries"].items()}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "the saved state is damaged, so the observer begins anew", reason=str(error)
            )
        for place in sorted((self._directory / "output").iterdir()):
            matches = ((_NAME.fullmatch(path.name), path) for path in place.iterdir())
            found = [_batch(int(m[1]), int(m[2]), path) for m, path in matches if m]
            self._kept[place.name] = kept = sorted(found, key=lambda one: one.number)
            if self.group_id is None:
                _delete(kept, 0)
            elif kept:
                progress = self.progress.setdefault(place.name, QueryProgress())
                progress.last = max(progress.last or 0, kept[-1].number)


def _batch(number: int, rows: int, path: Path) -> KeptBatch:
    found = path.stat()
    return KeptBatch(number, rows, found.st_size, found.st_mtime, path)


def _delete(kept: list[KeptBatch], left: int) -> None:
    """Delete the oldest batches until ``left`` remain."""
    while len(kept) > left:
        os.unlink(kept.pop(0).path)
