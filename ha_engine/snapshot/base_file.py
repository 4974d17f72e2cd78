"""The base file replaces the trimmed records of a journal.

The base file has the base of the trimmed records, the producer table and the source offsets. The
base file is a digest followed by an Arrow IPC file, and every write replaces the whole file. The
rows of the Arrow file are the producer table. The metadata of the Arrow file are the base and the
source offsets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.system.files import OS_FILES, Files, read_file, replace_file
from ha_engine.types import Base, Deployed, Mark, Position, QueryBase, QueryVersion

NAME = "base.arrow"
"""The base file is in the journal's directory, so that a rename moves both together."""
VERSION, VERSION_WITH_OFFSETS, VERSION_WITH_DEPLOYED, VERSION_WITH_SHADOWS = 1, 2, 3, 4
"""A file with source offsets, with a deployed application, or with a shadow has a version of its
own, so that an older engine refuses the file.

An older engine would ignore the offsets, and read the whole source again. It would also ignore the
deployed application, and run the one in its file.
"""
_VERSIONS = (VERSION, VERSION_WITH_OFFSETS, VERSION_WITH_DEPLOYED, VERSION_WITH_SHADOWS)
DIGEST_BYTES = 32
_KEY = b"ha_engine.base"


class JournalBase(NamedTuple):
    """The content of the base file.

    The table ``producers`` has PRODUCERS_SCHEMA. Each of ``offsets`` has a stream, a source, the
    source's offset, and the source's numbers of rows, rejected rows and batches.
    """

    base: Base
    producers: pa.Table
    offsets: Sequence[tuple[str, str, str, int, int, int]] = ()


def encode(found: JournalBase) -> bytes:
    base, producers, offsets = found
    version = VERSION_WITH_OFFSETS if offsets else VERSION
    if base.deployed is not None:
        version = VERSION_WITH_SHADOWS if base.deployed.has_shadows else VERSION_WITH_DEPLOYED
    tree = {"version": version, **asdict(base), "offsets": list(offsets)}
    if base.deployed is None:
        del tree["deployed"]
    else:
        tree["deployed"] = base.deployed.tree
    for query in tree["queries"]:
        if query["version"]["promoted"] is None:
            del query["version"]["promoted"]
    metadata = {_KEY: json.dumps(tree).encode()}
    sink = pa.BufferOutputStream()
    table = producers.replace_schema_metadata(metadata)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content = memoryview(sink.getvalue())
    return b"".join((_digest(content), content))


def decode(encoded: bytes) -> JournalBase:
    """Decode the content of a base file.

    Raises ValueError if ``encoded`` is not a base file, or has an unknown version (RULES.md#r32).
    """
    content = memoryview(encoded)[DIGEST_BYTES:]
    if encoded[:DIGEST_BYTES] != _digest(content):
        raise ValueError("the file's content does not match its digest")
    try:
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            table = reader.read_all()
        tree = json.loads(table.schema.metadata[_KEY])
        if tree.pop("version") not in _VERSIONS:
            raise ValueError("the file has another format version")
        offsets = tuple(map(_offset, tree.get("offsets", ())))
        return JournalBase(_from_tree(tree), table.replace_schema_metadata(None), offsets)
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise ValueError("it cannot be read") from error


def _digest(content: memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def store(path: Path, encoded: bytes, files: Files = OS_FILES) -> None:
    """Replace the base file durably, so that a crash leaves either the old file or the new file.

    Raises OSError.
    """
    replace_file(path, [encoded], files)


def load(path: Path, files: Files = OS_FILES) -> JournalBase | None:
    """Load the base file, or return None if the file does not exist.

    Raises JournalDamaged, DiskFailed.
    """
    try:
        return decode(read_file(path, files))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskFailed(f"{path} cannot be read: {error.strerror}; check the disk") from error
    except ValueError as error:
        raise JournalDamaged(str(path), 0, str(error)) from error


def _from_tree(tree: dict[str, Any]) -> Base:
    return Base(
        _position(tree["position"]),
        tuple(map(_position, tree["epochs"])),
        tuple(map(_position, tree["forced"])),
        tree["application"],
        tuple(map(_query, tree["queries"])),
        tuple((query, number) for query, number in tree["skips"]),
        Deployed.from_tree(tree["deployed"]) if tree.get("deployed") else None,
    )


def _offset(row: list[Any]) -> tuple[str, str, str, int, int, int]:
    stream, source, offset, rows, rejected, batches = row
    return stream, source, offset, rows, rejected, batches


def _position(tree: dict[str, int]) -> Position:
    return Position(tree["epoch"], tree["sequence"])


def _query(tree: dict[str, Any]) -> QueryBase:
    version = dict(tree["version"])
    return QueryBase(
        QueryVersion(**{**version, "first": Mark(**version["first"])}),
        tree["lineage"],
        tree["carried_on"],
        Mark(**tree["initial"]),
        Mark(**tree["last"]),
        tuple((sink, batch) for sink, batch in tree["published"]),
        tuple(tree["unheard"]),
        tuple(Mark(**mark) for mark in tree["ahead"]),
    )
