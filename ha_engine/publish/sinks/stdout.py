"""The ``stdout`` sink: write each row as a line of JSON to the node's standard output."""

from __future__ import annotations

import sys
from typing import ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from ha_engine.formats.values import json_text, rows_of
from ha_engine.plugins import OutputBatch, SinkPlace


class StdoutOptions(BaseModel):
    """The sink has no options."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StdoutSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[BaseModel]] = StdoutOptions
    guarantee: ClassVar[str] = (
        "at least once: each line has its query and batch; after a crash the last batch is repeated"
    )

    def __init__(self, options: StdoutOptions, place: SinkPlace) -> None:
        self._place = place

    def prepare(self, schema: pa.Schema) -> None:
        pass

    def deliver(self, batch: OutputBatch) -> None:
        heading = {"query": self._place.query, "batch": batch.number}
        lines = (json_text({**heading, "row": row}) for row in rows_of(batch.read()))
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def close(self) -> None:
        pass
