"""A source of messages that is installed beside the engine; a template for your own."""

import time
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from ha_engine.plugins import Messages, SourceBatch


class SpoolOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    directory: Path


class SpoolSource:
    """The files of a directory in the order of their names, each one message.

    The application file says in ``format`` what a message is, and in ``columns`` which column gets
    the name of the file.
    """

    Options = SpoolOptions
    guarantee = "exactly once, as long as each new name sorts after the last one"
    attributes: ClassVar = {"name": pa.string()}

    def __init__(self, options, place):
        self._directory, self._last = options.directory, ""
        self._attributes = place.attributes

    def open(self, offset):
        self._last = offset or ""

    def read(self, rows_max, seconds):
        until = time.monotonic() + seconds
        while not (names := self._next(rows_max)):
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        self._last = names[-1]
        values = [(self._directory / name).read_bytes() for name in names]
        attributes = dict.fromkeys(self._attributes, names)
        return SourceBatch(self._last, Messages(values, attributes), place=names.__getitem__)

    def _next(self, count):
        names = sorted(path.name for path in self._directory.iterdir())
        return [name for name in names if name > self._last][:count]

    def close(self):
        pass
