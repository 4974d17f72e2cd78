"""A sink that is installed beside the engine; a template for your own."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ha_engine.errors import SinkRefused, SinkUnavailable


class LinesOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    directory: Path


class LinesSink:
    Options = LinesOptions
    guarantee = "exactly once by name: a batch is one file, written as a whole"

    def __init__(self, options, place):
        self._directory = options.directory

    def prepare(self, schema):
        if not schema.names:
            raise SinkRefused("a row needs a column")

    def deliver(self, batch):
        target = self._directory / f"{batch.number}.txt"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = target.with_suffix(".part")
            draft.write_text("".join(f"{json.dumps(row)}\n" for row in batch.read().to_pylist()))
            draft.replace(target)
        except OSError as error:
            raise SinkUnavailable(f"{target} cannot be written: {error.strerror}") from error

    def close(self):
        pass
