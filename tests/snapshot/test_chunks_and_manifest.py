"""The parts of a revision, and the detection of damage to each."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import ChunkDamaged, SnapshotDamaged
from ha_engine.snapshot.chunks import CHUNK_BYTES, digest_of, pack, split, unpack
from ha_engine.snapshot.manifest import (
    CapturedQuery,
    KeptFile,
    Manifest,
    StoredFile,
    decode,
    encode,
)
from ha_engine.types import Position

MANIFEST = Manifest(
    group_id="group-1",
    journal_id="journal-1",
    position=Position(3, 1000),
    application="digest",
    runtime={"spark": "4.3.0"},
    queries=(CapturedQuery("delays", 12, 2, "ab" * 32), CapturedQuery("alerts", 0, 2, "")),
    files=(
        StoredFile("checkpoints/delays/metadata", 45, (digest_of(b"one"),)),
        StoredFile("checkpoints/delays/state/0/0/13.delta", 3, (digest_of(b"two"),)),
        StoredFile("checkpoints/delays/empty", 0, ()),
    ),
)


@given(st.binary(min_size=1, max_size=3000))
def test_chunk_survives_a_round_trip(content: bytes) -> None:
    chunk = pack(content)
    assert (chunk.size, chunk.digest) == (len(content), digest_of(content))
    assert unpack(chunk) == content


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_file_equals_its_concatenated_chunks(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * (size // 256 + 1))
    with file.open("rb+") as opened:
        opened.truncate(size)
    pieces = list(split(file))
    assert b"".join(pieces) == file.read_bytes()
    assert all(0 < len(piece) <= CHUNK_BYTES for piece in pieces)


@given(st.binary(min_size=1, max_size=500), st.data())
def test_flipped_bit_of_a_chunk_is_detected(content: bytes, data: st.DataObject) -> None:
    chunk = pack(content)
    at = data.draw(st.integers(0, len(chunk.stored) * 8 - 1))
    damaged = bytearray(chunk.stored)
    damaged[at // 8] ^= 1 << at % 8
    with suppress(ChunkDamaged):  # else the bit carries no information
        assert unpack(replace(chunk, stored=bytes(damaged))) == content


def test_chunk_in_the_place_of_another_is_detected() -> None:
    one, other = pack(b"one" * 10), pack(b"two" * 10)
    with pytest.raises(ChunkDamaged, match="the chunk's content does not match its digest"):
        unpack(replace(one, stored=other.stored))
    with pytest.raises(ChunkDamaged):
        unpack(replace(one, size=5))


@pytest.mark.parametrize("size", [-(1 << 63), -1, 0, CHUNK_BYTES + 1, 1 << 62, (1 << 63) - 1])
def test_impossible_chunk_size_is_detected(size: int) -> None:
    with pytest.raises(ChunkDamaged, match=f"the chunk's size of {size} bytes is impossible"):
        unpack(replace(pack(b"one"), size=size))


def test_manifest_survives_a_round_trip() -> None:
    assert decode(*encode(MANIFEST)) == MANIFEST
    assert MANIFEST.size == 48
    assert list(MANIFEST.digests) == [digest_of(b"one"), digest_of(b"two")]


def test_only_a_manifest_that_names_objects_has_a_form_that_the_release_before_refuses() -> None:
    naming = replace(MANIFEST, kept_at="s3a://states/g", kept=(KeptFile("c/q/1", 7, "k", "tag"),))
    assert decode(*encode(naming)) == naming
    assert json.loads(gzip.decompress(encode(naming)[0]))["version"] == 2
    assert json.loads(gzip.decompress(encode(MANIFEST)[0]))["version"] == 1


def test_manifest_with_a_wrong_digest_is_refused() -> None:
    encoded, digest = encode(MANIFEST)
    for broken in (encoded[:-1], bytes(len(encoded)), b""):
        with pytest.raises(SnapshotDamaged, match="digest"):
            decode(broken, digest)


@pytest.mark.parametrize("garbage", [b"", b"x", b"{}"])
def test_unreadable_manifest_is_refused(garbage: bytes) -> None:
    with pytest.raises(SnapshotDamaged, match="cannot be read"):
        decode(garbage, digest_of(garbage))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_manifest_path_outside_the_directory_is_refused(path: str) -> None:
    strange = replace(MANIFEST, files=(StoredFile(path, 0, ()),))
    with pytest.raises(SnapshotDamaged, match="cannot be read"):
        decode(*encode(strange))
