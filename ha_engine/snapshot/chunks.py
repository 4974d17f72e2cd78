"""Split a file into chunks, which are compressed pieces of equal size.

A chunk is named by the digest of its content. The files of a checkpoint never change, so pieces
with equal content are at equal offsets. Content-defined chunking would not find more equal pieces.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ha_engine.errors import ChunkDamaged
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import Chunk

CHUNK_BYTES = 1 << 20
DIGEST_BYTES = 32
_CODEC = pa.Codec("zstd", compression_level=1)


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def split(path: Path, files: Files = OS_FILES) -> Iterator[bytes]:
    """The pieces of a file in order; an empty file has no pieces. Raises OSError."""
    with io.BufferedReader(files.reader(path)) as file:
        while content := file.read(CHUNK_BYTES):
            yield content


def pack(content: bytes) -> Chunk:
    return Chunk(digest_of(content), len(content), _CODEC.compress(content, asbytes=True))


def unpack(chunk: Chunk) -> bytes:
    """The decompressed content of a chunk.

    Raises ChunkDamaged when the content does not match the chunk's digest (RULES.md#i10).
    """
    if not 0 < chunk.size <= CHUNK_BYTES:  # the codec allocates this much before it decompresses
        raise ChunkDamaged(chunk.digest, f"the chunk's size of {chunk.size} bytes is impossible")
    try:
        content: bytes = _CODEC.decompress(chunk.stored, chunk.size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ChunkDamaged(chunk.digest, "it cannot be decompressed") from error
    if digest_of(content) != chunk.digest:
        raise ChunkDamaged(chunk.digest, "the chunk's content does not match its digest")
    return content
