"""Write rows that a sink will never take to files, for a person to read, and count them.

    <data_dir>/dead_letters/<query>/<sink>/<batch>-<digest>.jsonl

Each line has the reason and the row. The same rows always go to the same file. The files are on the
node that was then active, and are part of no snapshot.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import structlog

from ha_engine.errors import SinkUnavailable
from ha_engine.plugins import OutputBatch
from ha_engine.publish.sinks.json_lines import json_lines, json_text, rows_of
from ha_engine.system.fsync import make_directory, write_whole

log = structlog.get_logger(__name__)

DIRECTORY = "dead_letters"


class SinkDeadLetters:
    """The dead letters of one sink of one query; ``rows`` counts since the process began."""

    def __init__(self, data_dir: Path, query: str, sink: str) -> None:
        self._directory = data_dir / DIRECTORY / query / sink
        self._query, self._sink = query, sink
        self.rows = 0

    def put_aside(self, batch: OutputBatch, reason: str, rows: pa.Table) -> None:
        """Write ``rows`` durably. Raises SinkUnavailable when the disk does not take them."""
        name = hashlib.blake2b(json_lines(rows), digest_size=8).hexdigest()
        path = self._directory / f"{batch.number}-{name}.jsonl"
        lines = [json_text({"reason": reason, "row": row}) + "\n" for row in rows_of(rows)]
        try:
            if path.exists():
                return
            make_directory(self._directory, 0o700)
            write_whole(path, "".join(lines).encode())
        except OSError as error:
            raise SinkUnavailable(f"{path} cannot be written: {error.strerror}") from error
        self.rows += len(lines)
        place = {"query": self._query, "sink": self._sink, "batch": batch.number}
        log.error("rows put aside", **place, rows=len(lines), reason=reason, file=str(path))
