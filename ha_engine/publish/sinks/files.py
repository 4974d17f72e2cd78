"""The ``files`` sink: one file a batch, idempotent by name.

    <directory>/<query>/<batch, twelve digits>.jsonl

A file appears whole, by a rename, and is never changed. Where both nodes write to one shared
directory, each batch is there once. Where each has its own, the batch that was in flight at a
failover may be on both, under the same name and with the same rows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from ha_engine.durable import fsync_directory
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.publish.sinks.json_lines import json_lines


class FilesOptions(BaseModel):
    """``directory`` must be an absolute path: it is the same on both nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Path
    format: Literal["jsonl", "parquet"] = "jsonl"


class FilesSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[BaseModel]] = FilesOptions
    guarantee: ClassVar[str] = (
        "exactly once by name: one file a batch, which a repeated delivery finds or replaces by "
        "the same rows"
    )

    def __init__(self, options: FilesOptions, place: SinkPlace) -> None:
        self._directory, self._format = options.directory / place.query, options.format

    def prepare(self, schema: pa.Schema) -> None:
        if not self._directory.is_absolute():
            raise SinkRefused(f"the directory {self._directory.parent} must be an absolute path")
        if self._format == "parquet":
            _written(schema.empty_table(), pa.BufferOutputStream())

    def deliver(self, batch: OutputBatch) -> None:
        target = self._directory / f"{batch.number:012d}.{self._format}"
        draft = target.with_suffix(f".{self._format}.part")
        try:
            if target.exists():
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                self._write(batch.read(), file)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(target)
            fsync_directory(self._directory)
        except OSError as error:
            raise SinkUnavailable(f"{target} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        pass

    def _write(self, rows: pa.Table, file: object) -> None:
        if self._format == "parquet":
            _written(rows, file)
        else:
            file.write(json_lines(rows))  # type: ignore[attr-defined]


def _written(rows: pa.Table, file: object) -> None:
    try:
        pq.write_table(rows, file)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SinkRefused(f"these rows have no form in Parquet: {error}") from error
