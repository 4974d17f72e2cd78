"""Write dead letters, the rows that a sink will never take, to files for a person to read.

    <data_dir>/dead_letters/<query>/<sink>/<batch>-<digest>.jsonl

Each line of a file has one row and the reason why the sink refused it. The file's name contains a
digest of the rows, so that the same rows always go to the same file. The files are on the node that
was active when the sink refused the rows, and no snapshot contains them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import structlog

from ha_engine.errors import SinkUnavailable
from ha_engine.formats.json_lines import json_lines
from ha_engine.formats.values import json_text, rows_of
from ha_engine.plugins import OutputBatch
from ha_engine.system.files import make_directory
from ha_engine.system.fsync import write_whole

log = structlog.get_logger(__name__)

DIRECTORY = "dead_letters"


class SinkDeadLetters:
    """The dead letters of one sink of one query.

    ``rows`` counts the rows that this process has put aside.
    """

    def __init__(self, data_dir: Path, query: str, sink: str) -> None:
        self._directory = data_dir / DIRECTORY / query / sink
        self._query, self._sink = query, sink
        self.rows = 0

    def put_aside(self, batch: OutputBatch, reason: str, rows: pa.Table) -> None:
        """Write ``rows`` durably. Raises SinkUnavailable if the disk fails."""
        name = hashlib.blake2b(json_lines(rows), digest_size=8).hexdigest()
        path = self._directory / f"{batch.number}-{name}.jsonl"
        lines = [json_text({"reason": reason, "row": row}) + "\n" for row in rows_of(rows)]
        try:
            if path.exists():
                return
            make_directory(self._directory)
            write_whole(path, "".join(lines).encode())
        except OSError as error:
            raise SinkUnavailable(f"{path} cannot be written: {error.strerror}") from error
        self.rows += len(lines)
        place = {"query": self._query, "sink": self._sink, "batch": batch.number}
        log.error("rows put aside", **place, rows=len(lines), reason=reason, file=str(path))
