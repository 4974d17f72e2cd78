"""A slow line to the database, over which few chunks pass within the timeout of a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ha_engine.errors import DatabaseUnreachable
from ha_engine.snapshot.chunks import CHUNK_BYTES
from ha_engine.snapshot.files import CHUNKS_TOGETHER, Names, download, upload
from ha_engine.types import Chunk


class SlowStore:
    """A store that answers in time only to calls of at most ``passes`` chunks."""

    def __init__(self, passes: int) -> None:
        self.passes, self.kept, self.calls = passes, dict[bytes, Chunk](), list[int]()

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]:
        return set(digests) - set(self.kept)

    def collect(self) -> int:
        return 0

    def add(self, draft: int, chunks: Sequence[Chunk]) -> None:
        self._pass(len(chunks))
        assert not set(self.kept) & {chunk.digest for chunk in chunks}
        self.kept |= {chunk.digest: chunk for chunk in chunks}

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        self._pass(len(digests))
        return {digest: self.kept[digest] for digest in digests}

    def _pass(self, count: int) -> None:
        assert count > 0, "a call without chunks"
        self.calls.append(count)
        if count > self.passes:
            raise DatabaseUnreachable("it did not answer in time")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Write a file of eleven chunks, one of them twice, and small ones, two of them equal."""
    found = {"large": b"".join(bytes([n % 10]) * CHUNK_BYTES for n in range(11))}
    found |= {f"small-{n}": b"%d" % (n // 2) for n in range(5)}
    for name, content in found.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in found}


@pytest.mark.parametrize("passes", [1, 2, 3, 5, CHUNKS_TOGETHER])
def test_snapshot_passes_a_slow_line_in_smaller_calls(
    files: dict[str, Path], tmp_path: Path, passes: int
) -> None:
    store, sent, come = SlowStore(passes), list[int](), list[int]()
    described, new = upload(store, 1, files, Names(), sent.append)
    size = sum(path.stat().st_size for path in files.values())
    assert (new, len(store.kept)) == (10 * CHUNK_BYTES + 3, 13)
    download(store, described, tmp_path / "back", come.append)
    for name, path in files.items():
        assert (tmp_path / "back" / name).read_bytes() == path.read_bytes()
    assert (sum(sent), sum(come)) == (size, size)


def test_store_learns_once_how_many_chunks_pass(files: dict[str, Path]) -> None:
    store = SlowStore(passes=2)
    upload(store, 1, files, Names(), lambda _: None)
    assert store.calls == [8, 4, 2, 2, 2, 2, 2, 2, 1]


def test_slow_transfer_reports_progress_to_its_caller(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """A restore renews its pin on progress, and four attempts may take longer than a pin lasts."""
    store, told = SlowStore(CHUNKS_TOGETHER), list[int]()
    described, _ = upload(store, 1, files, Names(), lambda _: None)
    store.passes = 1
    download(store, described, tmp_path / "back", told.append)
    assert told[:4] == [0, 0, 0, CHUNK_BYTES]


def test_database_that_answers_no_chunk_call_is_unreachable(files: dict[str, Path]) -> None:
    store = SlowStore(passes=0)
    with pytest.raises(DatabaseUnreachable):
        upload(store, 1, files, Names(), lambda _: None)
    assert store.calls == [8, 4, 2, 1]
