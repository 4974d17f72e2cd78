"""The ``files`` sink writes one file per batch, idempotent by the file's name.

    <directory>/<query>/<batch, twelve digits>.jsonl
    <directory>/<query>/<batch, twelve digits>.<bucket>-of-<buckets>.jsonl

A file appears complete, by a rename, and never changes, so a repeated delivery finds the same
bytes. A file with other bytes comes from another group, or from a batch that a forced failover gave
up. The sink refuses to continue at a file with other bytes, because only a person can decide
whether to keep it. A directory that both nodes share has each batch once. If each node has its own
directory, both may have the batch that a failover interrupted, with the same name and rows. The
file of a bucket is linked and not renamed, so that a task of a former active, which no ledger
fences, replaces nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.plugins.row_files import require_file, row_file
from ha_engine.system.files import make_directory
from ha_engine.system.fsync import fsync_directory, write_whole


class FilesOptions(BaseModel):
    """The sink's options. ``directory`` must be an absolute path, the same on both nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Path
    format: Literal["jsonl", "parquet"] = "jsonl"


class FilesSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[BaseModel]] = FilesOptions
    guarantee: ClassVar[str] = (
        "exactly once by name: one file a batch; a repeated delivery finds that file"
    )
    buckets: ClassVar[bool] = True

    def __init__(self, options: FilesOptions, place: SinkPlace) -> None:
        self._directory, self._format = options.directory / place.query, options.format
        self._bucket = place.bucket

    def prepare(self, schema: pa.Schema) -> None:
        if not self._directory.is_absolute():
            raise SinkRefused(f"the directory {self._directory.parent} must be an absolute path")
        require_file(schema, self._format)

    def deliver(self, batch: OutputBatch) -> None:
        target = self._path(batch.number)
        content = row_file(batch.read(), self._format)
        try:
            if self._create(target, content):
                return
            if target.read_bytes() == content:
                fsync_directory(self._directory)  # its writer may have died before it did this
            else:
                raise SinkRefused(f"{target} has other rows than this batch; move that file away")
        except OSError as error:
            raise SinkUnavailable(f"{target} cannot be written: {error.strerror}") from error

    def has(self, number: int) -> bool:
        """Whether this host sees the file of batch ``number``."""
        return self._path(number).exists()

    def close(self) -> None:
        pass

    def _path(self, number: int) -> Path:
        parts = [f"{number:012d}", self._bucket, self._format]
        return self._directory / ".".join(filter(None, parts))

    def _create(self, target: Path, content: bytes) -> bool:
        """Return False if the file is there already."""
        if target.exists():
            return False
        make_directory(self._directory, 0o777)
        try:
            write_whole(target, content, replace=not self._bucket)
        except FileExistsError:
            return False
        return True
