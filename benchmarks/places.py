"""Where a run works: a directory with a PostgreSQL in it, gone at the end unless kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.database import Database, database


@contextmanager
def place(keep: Path | None = None) -> Iterator[tuple[Path, Database]]:
    if keep is not None:
        keep.mkdir(parents=True)
        with database(keep / "postgres") as db:
            yield keep, db
        return
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-bench-") as name,
        database(Path(name) / "postgres") as db,
    ):
        yield Path(name), db
