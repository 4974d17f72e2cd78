"""Cuts a file into chunks: pieces of one size, named by their content and compressed.

Files of a checkpoint are written once and never changed. Equal pieces are therefore at equal
offsets, and splitting by content would find no more of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ha_engine.errors import ChunkDamaged
from ha_engine.types import Chunk

CHUNK_BYTES = 1 << 20
DIGEST_BYTES = 32
_CODEC = pa.Codec("zstd", compression_level=1)


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def split(path: Path) -> Iterator[bytes]:
    """The file's pieces in order; an empty file has none. Raises OSError."""
    with path.open("rb") as file:
        while content := file.read(CHUNK_BYTES):
            yield content


def pack(content: bytes) -> Chunk:
    return Chunk(digest_of(content), len(content), _CODEC.compress(content, asbytes=True))


def unpack(chunk: Chunk) -> bytes:
    """The content. Raises ChunkDamaged when it is not what the digest names (RULES.md#i10)."""
    if not 0 < chunk.size <= CHUNK_BYTES:  # the codec allocates this much before it decompresses
        raise ChunkDamaged(chunk.digest, f"its size of {chunk.size} bytes is impossible")
    try:
        content: bytes = _CODEC.decompress(chunk.stored, chunk.size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ChunkDamaged(chunk.digest, "it cannot be decompressed") from error
    if digest_of(content) != chunk.digest:
        raise ChunkDamaged(chunk.digest, "its content does not match its name")
    return content
