"""A source that is installed beside the engine; a template for your own."""

import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ha_engine.errors import SourceUnavailable
from ha_engine.plugins import SourceBatch


class TailOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    file: Path


class TailSource:
    """A growing file of JSON lines, on a file system that both nodes share."""

    Options = TailOptions
    guarantee = "exactly once, as long as the file only grows"

    def __init__(self, options, place):
        self._path, self._file = options.file, None

    def open(self, offset):
        self.close()
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise SourceUnavailable(f"{self._path} cannot be read: {error.strerror}") from error
        self._file.seek(int(offset or 0))

    def read(self, rows_max, seconds):
        rows, until = [], time.monotonic() + seconds
        while len(rows) < rows_max:
            start = self._file.tell()
            line = self._file.readline()
            if line.endswith(b"\n"):
                rows.append(line.rstrip(b"\n"))
                continue
            self._file.seek(start)
            if rows or time.monotonic() >= until:
                break
            time.sleep(0.05)
        return SourceBatch(str(self._file.tell()), rows) if rows else None

    def close(self):
        if self._file is not None:
            self._file.close()
