"""The file of one output batch, and the digest by which nodes compare batches (RULES.md#i6).

A batch file is an Arrow IPC file, followed by the magic ``HAOB`` and the CRC32C of the IPC file
(uint32, little-endian). Each read checks the CRC32C, so the node never publishes a batch that
changed on the disk. A file of an earlier version has no CRC32C and ends with the IPC file.

The digest depends on column names, types and values. The order of rows and their chunks do not
affect the digest, since Spark promises neither. ``outbox`` decides where batch files are and when
they are deleted.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import extend

from ha_engine.errors import DiskFailed, OutboxDamaged
from ha_engine.outbox.canonical import canonical_columns, in_one_form
from ha_engine.system.files import CREATE, OS_FILES, Files

DIGEST_BYTES = 16
_TRAILER = struct.Struct("<4sI")
_MAGIC = b"HAOB"
_IPC_END = b"ARROW1"
_PIECE_BYTES = 1 << 20
_QUERY, _NUMBER = b"ha_engine.query", b"ha_engine.number"
WRITTEN_BY_TASKS = pa.table({})
"""The content of a batch whose rows Spark's tasks have written to the sink (RULES.md#r34).

Any other batch has a column."""


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch whose file is written and fsynced. ``bytes`` is the size of the file."""

    path: Path
    rows: int
    bytes: int


def write_batch_file(
    path: Path, table: pa.Table, *, query: str, number: int, files: Files = OS_FILES
) -> WrittenBatch:
    """Write a batch file and fsync it; the later rename fsyncs the directory. Raises DiskFailed."""
    marked = table.replace_schema_metadata({_QUERY: query.encode(), _NUMBER: str(number).encode()})
    try:
        with files.open(path, CREATE) as raw, io.BufferedWriter(raw) as file:
            checksum = 0

            def write(part: bytes) -> None:
                nonlocal checksum
                checksum = extend(checksum, part)
                file.write(part)

            with pa.ipc.new_file(pa.PythonFile(_To(write), mode="w"), marked.schema) as writer:
                writer.write_table(marked)
            file.write(_TRAILER.pack(_MAGIC, checksum))
            file.flush()
            raw.fsync()
            return WrittenBatch(path, table.num_rows, file.tell())
    except OSError as error:
        raise DiskFailed(
            f"writing {path} failed: {error.strerror}; "
            "free or replace the disk, then restart the node"
        ) from error


def read_batch_file(path: Path, files: Files = OS_FILES) -> pa.Table:
    """The rows of a batch file, memory-mapped. Raises OutboxDamaged."""
    try:
        length = _verified_length(path, files)
        with (
            pa.memory_map(str(path)) as file,
            pa.ipc.open_file(file.read_buffer(length)) as reader,
        ):
            return reader.read_all().replace_schema_metadata(None)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise OutboxDamaged(
            f"{path} cannot be read ({error}); "
            "stop the node and restore it from its peer or a snapshot"
        ) from error


def _verified_length(path: Path, files: Files) -> int:
    """The length of the IPC file without the trailer. Raises ValueError if its CRC32C is wrong.

    An ordinary read of a bad sector raises OSError. A read of mapped memory would end the process.
    """
    with io.BufferedReader(files.reader(path)) as file:
        size = file.seek(0, os.SEEK_END)
        length = size - _TRAILER.size
        if length < 0:
            raise ValueError("it is too short")
        file.seek(size - len(_IPC_END))
        if file.read() == _IPC_END:
            return size
        file.seek(length)
        magic, wanted = _TRAILER.unpack(file.read())
        if magic != _MAGIC or _sum_of(file, length) != wanted:
            raise ValueError("its checksum is wrong")
        return length


def whole_length(content: bytes) -> tuple[int, int | None]:
    """The length of the IPC file in the ``content`` of a batch file, and the CRC32C in its trailer,
    which a file of an earlier version does not have."""
    if content.endswith(_IPC_END):
        return len(content), None
    length = max(0, len(content) - _TRAILER.size)
    return length, _TRAILER.unpack(content[length:].ljust(_TRAILER.size))[1]


def _sum_of(file: BinaryIO, length: int) -> int:
    found = 0
    file.seek(0)
    for begin in range(0, length, _PIECE_BYTES):
        found = extend(found, file.read(min(_PIECE_BYTES, length - begin)))
    return found


def digest_of_file(path: Path, files: Files = OS_FILES) -> str:
    """The digest of an admitted batch whose writer died before it reported the digest."""
    return digest_of_table(read_batch_file(path, files))


def digest_of_table(table: pa.Table) -> str:
    """Hex digest of the rows as a multiset: BLAKE2b over the sorted rows in Arrow IPC
    (RULES.md#i6)."""
    rows = _sorted(canonical_columns(table))
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    hasher.update(_heading(table))
    with pa.ipc.new_stream(pa.PythonFile(_To(hasher.update), mode="w"), rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return hasher.hexdigest()


def in_canonical_form(table: pa.Table) -> pa.Table:
    """Sort the rows, and write each value in one form. Tables with equal digests become the same
    rows in the same order."""
    table = in_one_form(table)
    columns = canonical_columns(table)
    if not columns.num_columns:
        return table
    return table.take(pc.sort_indices(columns, sort_keys=_all_of(columns)))


def _sorted(columns: pa.Table) -> pa.Table:
    return (
        columns.sort_by(_all_of(columns)) if columns.num_columns and columns.num_rows else columns
    )


def _all_of(columns: pa.Table) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in columns.column_names]


def _heading(table: pa.Table) -> bytes:
    """Column names, types and the number of rows, which the hashed rows do not contain."""
    fields = "".join(f"{field.name!r}: {field.type}\n" for field in table.schema)
    return f"{table.num_rows}\n{fields}".encode()


class _To:
    """A file object that gives what Arrow writes to a function, and counts the bytes."""

    closed = False

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._written = 0

    def write(self, part: bytes) -> int:
        self._write(part)
        self._written += len(part)
        return len(part)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


DIGEST_OF_TASKS = digest_of_table(WRITTEN_BY_TASKS)
