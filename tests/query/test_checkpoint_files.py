"""The files of a checkpoint that a snapshot copies: artificial files here, Spark's own below."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ha_engine.errors import CheckpointIncomplete
from ha_engine.query.checkpoint_files import copy_as_of, files_as_of, last_finished

STATE = "state/0/0"


def checkpoint(root: Path, *files: str, size: int = 10) -> Path:
    for name in ("metadata", "state/0/_metadata/metadata", "state/0/_metadata/.metadata.crc"):
        write(root / name)
    for name in files:
        write(root / name, size)
    return root


def write(path: Path, size: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def batches(*numbers: int) -> list[str]:
    return [f"{log}/{n}" for n in numbers for log in ("offsets", "commits")]


def copied(root: Path, batch: int, stored: frozenset[str] = frozenset()) -> set[str]:
    names = {str(path.relative_to(root)) for path in files_as_of(root, batch, stored)}
    return names - {"metadata", "state/0/_metadata/metadata"}


def test_the_last_finished_batch_is_the_newest_that_is_committed(tmp_path: Path) -> None:
    assert last_finished(tmp_path) is None
    root = checkpoint(tmp_path, *batches(0, 9, 10), "offsets/11", "commits/.10.crc")
    assert last_finished(root) == 10


def test_no_file_of_a_later_batch_and_no_checksum_file_is_copied(tmp_path: Path) -> None:
    later = [*batches(2, 3), f"{STATE}/4.delta", f"{STATE}/3.delta"]
    root = checkpoint(
        tmp_path / "c", *batches(0, 1), f"{STATE}/1.delta", f"{STATE}/2.delta", *later
    )
    write(root / STATE / ".1.delta.crc")
    copy_as_of(root, 1, tmp_path / "copy")
    found = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*")}
    assert found >= {*batches(0, 1), f"{STATE}/1.delta", f"{STATE}/2.delta", "metadata"}
    assert not found & set(later)
    assert not [name for name in found if name.endswith(".crc")]


def test_old_batches_and_superseded_states_are_not_copied(tmp_path: Path) -> None:
    root = checkpoint(
        tmp_path,
        *batches(*range(20)),
        *(f"{STATE}/{version}.delta" for version in range(5, 21)),
        f"{STATE}/8.snapshot",
        f"{STATE}/18.snapshot",
    )
    chain = {f"{STATE}/18.snapshot", f"{STATE}/19.delta", f"{STATE}/20.delta"}
    assert copied(root, 19) == {*batches(18, 19), *chain}


def test_each_store_of_a_join_has_its_own_chain(tmp_path: Path) -> None:
    left, right = f"{STATE}/left-keyToNumValues", f"{STATE}/right-keyToNumValues"
    root = checkpoint(
        tmp_path, *batches(0), f"{left}/1.delta", f"{right}/1.snapshot", f"{right}/1.delta"
    )
    assert copied(root, 0) == {*batches(0), f"{left}/1.delta", f"{right}/1.snapshot"}


def test_copy_keeps_stored_states_and_adds_deltas_instead_of_a_new_state(tmp_path: Path) -> None:
    """The cost of a snapshot must follow the changes, not the size of the state."""
    root = checkpoint(tmp_path, *batches(11), f"{STATE}/8.snapshot", f"{STATE}/12.snapshot")
    for name in ("8.snapshot", "12.snapshot"):
        write(root / STATE / name, 100_000_000)
    for version in range(9, 13):
        write(root / STATE / f"{version}.delta", 1000)
    changes = {f"{STATE}/{version}.delta" for version in range(9, 13)}
    assert copied(root, 11) == {*batches(11), f"{STATE}/12.snapshot"}
    old = frozenset({f"{STATE}/8.snapshot", f"{STATE}/9.delta"})
    assert copied(root, 11, old) == {*batches(11), f"{STATE}/8.snapshot", *changes}


def test_chain_much_longer_than_the_state_is_replaced_by_the_state(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, *batches(11), f"{STATE}/8.snapshot", f"{STATE}/12.snapshot")
    for version in range(9, 13):
        write(root / STATE / f"{version}.delta", 10_000_000)
    assert copied(root, 11, frozenset({f"{STATE}/8.snapshot"})) == {
        *batches(11),
        f"{STATE}/12.snapshot",
    }


def test_only_shared_rocksdb_files_named_in_the_zip_are_copied(tmp_path: Path) -> None:
    root = checkpoint(
        tmp_path,
        *batches(3),
        *(f"{STATE}/SSTs/{name}.sst" for name in ("a-1", "b-2", "c-3")),
        f"{STATE}/logs/l-1.log",
        f"{STATE}/4.changelog",
        f"{STATE}/5.changelog",
    )
    named = {
        "sstFiles": [{"localSstName": "a.sst", "dfsSstFileName": "a-1.sst", "sstSize": 10}],
        "logFiles": [{"localLogName": "l.log", "dfsLogFileName": "l-1.log", "logSize": 10}],
        "numKeys": 1,
    }
    with zipfile.ZipFile(root / STATE / "3.zip", "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps(named)}")
    parts = {f"{STATE}/SSTs/a-1.sst", f"{STATE}/logs/l-1.log", f"{STATE}/3.zip"}
    assert copied(root, 3) == {*batches(3), *parts, f"{STATE}/4.changelog"}


@pytest.mark.parametrize("missing", ["3.delta", "2.snapshot"])
def test_a_state_with_a_gap_is_not_copied(tmp_path: Path, missing: str) -> None:
    root = checkpoint(
        tmp_path, *batches(3), *(f"{STATE}/{n}" for n in ("2.snapshot", "3.delta", "4.delta"))
    )
    assert f"{STATE}/2.snapshot" in copied(root, 3)
    (root / STATE / missing).unlink()
    with pytest.raises(CheckpointIncomplete, match="version 4"):
        copy_as_of(root, 3, tmp_path / "copy")


def test_file_deleted_during_the_copy_is_reported(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "c", *batches(0), f"{STATE}/1.delta")
    (root / "metadata").unlink()
    with pytest.raises(CheckpointIncomplete, match="was deleted before"):
        copy_as_of(root, 0, tmp_path / "copy")
