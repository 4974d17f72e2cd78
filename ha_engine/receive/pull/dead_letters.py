"""Write dead letters, the rows of a source that are no events of its stream, to files for
operators.

    <data_dir>/rejected/<stream>/<source>/<batch>-<digest>.jsonl

Each line of a file has the row's place, the reason of the rejection, and the beginning of the row's
content. The file with the dead letters of a batch is durable before the batch is journalled. If the
active crashes after the file and before the record, the next active reads the batch again. A bad
row may therefore be written to two files, but is never lost. A file of dead letters is only on the
node that wrote it as the active, and is part of no snapshot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import structlog

from ha_engine.errors import SourceUnavailable
from ha_engine.plugins import DeadLetter
from ha_engine.system.files import make_directory
from ha_engine.system.fsync import write_whole

log = structlog.get_logger(__name__)

DIRECTORY = "rejected"
RAW_BYTES_MAX = 4 << 10


class SourceDeadLetters:
    """The dead letters of one source of one stream."""

    def __init__(self, data_dir: Path, stream: str, source: str) -> None:
        self.directory = data_dir / DIRECTORY / stream / source
        self._stream, self._source = stream, source

    def put_aside(self, batch: int, letters: Sequence[DeadLetter]) -> None:
        """Write ``letters`` durably to a file; a call with the same arguments writes no second
        file. Raises SourceUnavailable."""
        content = "".join(map(_line, letters)).encode()
        name = hashlib.blake2b(content, digest_size=8).hexdigest()
        path = self.directory / f"{batch:012}-{name}.jsonl"
        try:
            if path.exists():
                return
            make_directory(self.directory)
            write_whole(path, content)
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be written: {error.strerror}") from error
        place = {"stream": self._stream, "source": self._source, "rows": len(letters)}
        first = letters[0]
        log.error("rows rejected", **place, at=first.place, reason=first.reason, file=str(path))


def _line(letter: DeadLetter) -> str:
    raw = letter.raw[:RAW_BYTES_MAX].decode(errors="backslashreplace")
    return json.dumps({"place": letter.place, "reason": letter.reason, "raw": raw}) + "\n"
