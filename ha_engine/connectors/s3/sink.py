"""The sink kind ``s3`` creates one object for each batch, and never replaces an object.

    <url>/<query>/<batch, twelve digits>.<format>
    <url>/<query>/<batch, twelve digits>.<bucket>-of-<buckets>.<format>

The rows of a batch and the key of its object are the same on every node, so each batch is there
once, for these reasons:

1. One request creates an object whole, and only if the key has none (``If-None-Match: *``). Nobody
   sees a part of an object, and a former active that was frozen replaces nothing.
2. If the key has an object, the sink reads the object. With the rows of the batch, it is the
   batch's object: this node or another created it, and perhaps lost the answer. With other rows,
   the sink refuses.
3. A server that ignores the condition would replace objects. So an instance of the sink makes its
   first request twice, and refuses if the server accepts the second one. The second request has the
   same rows, so it spoils nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import model_validator

from ha_engine.connectors.s3.store import ObjectGone, Store, StoreOptions
from ha_engine.connectors.streams import remaining_of
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.plugins.row_files import RowFormat, comparable, require_file, row_file

_MEDIA_TYPES: Mapping[RowFormat, str] = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8; header=present",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}
_SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class S3SinkOptions(StoreOptions):
    """The options of the sink kind ``s3``, besides those of ``StoreOptions``.

    - ``format``: of the objects, ``jsonl``, ``csv``, ``parquet`` or ``arrow``.
    - ``compression``: of objects of text.
    """

    format: RowFormat = "jsonl"
    compression: Literal["none", "gzip", "zstd"] = "none"

    @model_validator(mode="after")
    def _text(self) -> S3SinkOptions:
        if self.compression != "none" and self.format not in ("jsonl", "csv"):
            raise ValueError(f"compression is for jsonl and csv; {self.format} has its own")
        if self.anonymous:
            raise ValueError("anonymous: true is for sources only")
        return self


class S3Sink:
    """Implements ``plugins.SinkPlugin``."""

    Options = S3SinkOptions
    guarantee: ClassVar[str] = (
        "exactly once by key: one object a batch; a repeated delivery finds that object"
    )
    buckets: ClassVar[bool] = True

    def __init__(self, options: S3SinkOptions, place: SinkPlace) -> None:
        self._options, self._query, self._bucket = options, place.query, place.bucket
        self._store = Store(options, SinkRefused, SinkUnavailable)
        self._is_open = self._is_proven = False

    def prepare(self, schema: pa.Schema) -> None:
        require_file(schema, self._options.format)

    def check(self) -> None:
        """Ask for an object that does not exist."""
        try:
            self._store.open()
            self._store.content(self._key(0), 0)
        except ObjectGone:
            pass  # the bucket answers
        finally:
            self.close()

    def deliver(self, batch: OutputBatch) -> None:
        if not self._is_open:
            self._store.open()
            self._is_open = True
        key, rows = self._key(batch.number), row_file(batch.read(), self._options.format)
        content = self._compressed(rows)
        remaining_of(batch, self._store.where)
        if self._create(key, content):
            if self._is_proven:
                return
            if self._create(key, content):
                raise SinkRefused(
                    f"{self._store.where} replaces an object that a request only creates "
                    "(If-None-Match), so that a former active could replace objects; use a server "
                    "with conditional writes"
                )
        self._is_proven = True
        self._require_same(key, rows, content)

    def close(self) -> None:
        self._store.close()
        self._is_open = self._is_proven = False

    def _key(self, number: int) -> str:
        options = self._options
        suffix = _SUFFIXES[options.compression]
        name = ".".join(filter(None, [f"{number:012d}", self._bucket, options.format]))
        return f"{self._query}/{name}{suffix}"

    def _create(self, key: str, content: bytes) -> bool:
        return self._store.create(key, content, _MEDIA_TYPES[self._options.format])

    def _require_same(self, key: str, rows: bytes, content: bytes) -> None:
        """Refuse the object ``key`` if it has not the rows of the batch."""
        try:
            # Another version of a library may have compressed the same rows to another size.
            found = self._store.content(key, 4 * len(rows) + (1 << 20))
        except ObjectGone as error:
            raise SinkUnavailable(
                f"{key} in {self._store.where} is just created or deleted by another writer"
            ) from error
        if found == content:
            return
        if found is None or self._rows_in(found) != comparable(rows, self._options.format):
            raise SinkRefused(
                f"{key} in {self._store.where} has other rows than this batch: another group "
                "writes there, or the group was initialised again, or a forced failover gave up "
                "the batch; move the object away, or give the sink another url"
            )

    def _compressed(self, rows: bytes) -> bytes:
        match self._options.compression:
            case "gzip":
                return gzip.compress(rows, mtime=0)
            case "zstd":
                return bytes(pa.Codec("zstd").compress(rows))
        return rows

    def _rows_in(self, content: bytes) -> bytes | None:
        """The rows in an object, as ``comparable`` returns them; None if there are none."""
        options = self._options
        try:
            if options.compression != "none":
                content = _decompressed(content, options.compression)
            return comparable(content, options.format)
        except (ValueError, OSError, pa.ArrowException):
            return None


def _decompressed(content: bytes, codec: str) -> bytes:
    found: bytes = pa.CompressedInputStream(pa.BufferReader(content), codec).read()
    return found
