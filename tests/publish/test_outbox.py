"""Admission, second attempts, trimming and restart of the outbox, on a real directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox import Admission, Outbox
from ha_engine.outbox.batch_file import (
    WRITTEN_BY_TASKS,
    digest_of_table,
    read_batch_file,
    write_batch_file,
)
from ha_engine.outbox.query_outbox import DIGESTS_KEPT, DROPPED, read_digest
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles

QUERY = "delays"


def _open(directory: Path, living: str | None = None) -> Outbox:
    return Outbox.open(directory, living=living)


def _rows(number: int) -> pa.Table:
    return pa.table({"n": [number] * number})


def _write(
    directory: Path, number: int, incarnation: str = "i1", rows: pa.Table | None = None
) -> str:
    file = f"{QUERY}/pending/{number}.{incarnation}.arrow"
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    table = _rows(number) if rows is None else rows
    write_batch_file(directory / file, table, query=QUERY, number=number)
    return file


def _write_on(files: SimulatedFiles, directory: Path) -> int:
    """Write the pending file of batch 1 as the query process does; return its size."""
    pending = directory / QUERY / "pending"
    for made in (pending.parent, pending):
        files.mkdir(made, 0o700)
    path = pending / "1.i1.arrow"
    write_batch_file(path, _rows(1), query=QUERY, number=1, files=files)
    return path.stat().st_size


def _admit(
    outbox: Outbox,
    directory: Path,
    number: int,
    *,
    digest: str | None = None,
    rows: pa.Table | None = None,
) -> Admission:
    file = _write(directory, number, rows=rows)
    size = (directory / file).stat().st_size
    return outbox.admit(QUERY, number, file, number, size, digest)


@pytest.mark.parametrize("last_change", ["the rename", "the fsync of the entries", "none"])
def test_admitted_batch_survives_a_loss_of_power(tmp_path: Path, last_change: str) -> None:
    """The query process made the directory without an fsync, and the node may have been killed."""
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    directory, killed = disk.root / "outbox", SimulatedFiles(disk)
    outbox = Outbox.open(directory, files=killed)
    size = _write_on(killed, directory)
    killed.crash_in = {"the rename": 2, "the fsync of the entries": 3, "none": 0}[last_change]
    with suppress(Crashed):
        outbox.admit(QUERY, 1, f"{QUERY}/pending/1.i1.arrow", 1, size)
    Outbox.open(directory, files=SimulatedFiles(disk))
    disk.go_back(disk.image())  # the loss of power that leaves least
    assert Outbox.open(directory, files=SimulatedFiles(disk)).last_admitted(QUERY) == 1


def test_batches_are_admitted_in_order_and_found_again(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    assert [_admit(outbox, tmp_path, n) for n in (1, 2)] == [Admission.ADMITTED] * 2
    reopened = _open(tmp_path)
    for known in (outbox, reopened):
        batch = known.batch(QUERY, 2)
        assert batch is not None
        assert read_batch_file(batch.path).equals(_rows(2))
        assert batch.rows == 2
        assert known.last_admitted(QUERY) == 2
        assert known.backlog(QUERY) == (
            2,
            sum(p.stat().st_size for p in tmp_path.glob("*/*.arrow")),
        )


def test_a_batch_that_leaves_a_gap_is_refused(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1)
    with pytest.raises(OutboxDamaged, match="does not follow batch 1"):
        _admit(outbox, tmp_path, 3)


def test_equal_second_attempt_succeeds_and_a_different_one_is_a_mismatch(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1)
    equal, other = digest_of_table(_rows(1)), digest_of_table(pa.table({"n": [7]}))
    assert _admit(outbox, tmp_path, 1) is Admission.NEED_DIGEST
    assert _admit(outbox, tmp_path, 1, digest=equal) is Admission.DONE
    assert (
        _admit(outbox, tmp_path, 1, digest=other, rows=pa.table({"n": [7]})) is Admission.MISMATCH
    )
    batch = outbox.batch(QUERY, 1)
    assert batch is not None
    assert read_batch_file(batch.path).equals(_rows(1)), "an admitted batch is never replaced"


@pytest.mark.parametrize("by_tasks_first", [True, False])
def test_batch_that_tasks_wrote_equals_any_other_attempt(
    tmp_path: Path, by_tasks_first: bool
) -> None:
    """The query got buckets, or lost them, between the two attempts."""
    tables = [WRITTEN_BY_TASKS, _rows(1)][:: 1 if by_tasks_first else -1]
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1, rows=tables[0])
    again = _admit(outbox, tmp_path, 1, digest=digest_of_table(tables[1]), rows=tables[1])
    assert again is Admission.DONE
    batch = outbox.batch(QUERY, 1)
    assert batch is not None
    assert read_batch_file(batch.path).equals(tables[0])


def test_second_attempt_of_a_trimmed_batch_is_compared_by_digest(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1)
    outbox.report_digest(QUERY, 1, digest_of_table(_rows(1)))
    outbox.trim(QUERY, 1)
    assert outbox.batch(QUERY, 1) is None
    reopened = _open(tmp_path)
    reopened.set_outbox_floor(QUERY, 1)
    assert _admit(reopened, tmp_path, 1) is Admission.NEED_DIGEST
    assert _admit(reopened, tmp_path, 1, digest="another") is Admission.MISMATCH
    assert _admit(reopened, tmp_path, 1, digest=digest_of_table(_rows(1))) is Admission.DONE


def test_outbox_without_batches_remembers_the_last_one(tmp_path: Path) -> None:
    outbox = Outbox.open(tmp_path)
    for number in (1, 2):
        _admit(outbox, tmp_path, number)
    outbox.trim(QUERY, 2)
    reopened = Outbox.open(tmp_path)
    assert (reopened.first(QUERY), reopened.last_admitted(QUERY)) == (None, 2)
    assert _admit(reopened, tmp_path, 3) is Admission.ADMITTED


def test_digest_of_a_batch_that_left_no_other_trace_is_forgotten(tmp_path: Path) -> None:
    """The power is lost in a drop, after a trim: the disk kept the end of batch 1 and its digest,
    but neither the record of the trim nor the end of the query's directory."""
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1)
    outbox.report_digest(QUERY, 1, digest_of_table(_rows(1)))
    outbox.trim(QUERY, 1)
    (tmp_path / QUERY / "1.left").unlink()
    reopened = _open(tmp_path)
    assert reopened.digest(QUERY, 1) is None
    other = pa.table({"n": [7]})
    assert _admit(reopened, tmp_path, 1, rows=other) is Admission.ADMITTED
    reopened.report_digest(QUERY, 1, digest_of_table(other))
    assert _open(tmp_path).digest(QUERY, 1) == digest_of_table(other)


@pytest.mark.parametrize("left", [b"", b"\0" * 32, b"3f2a", b"ab" * 16 + b" 00000000"])
def test_damaged_digest_file_is_computed_again(tmp_path: Path, left: bytes) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1, digest=digest_of_table(_rows(1)))
    sidecar = tmp_path / QUERY / "1.digest"
    sidecar.write_bytes(left)
    reopened = _open(tmp_path)
    assert not sidecar.exists()
    assert _admit(reopened, tmp_path, 1) is Admission.NEED_DIGEST
    assert _admit(reopened, tmp_path, 1, digest=digest_of_table(_rows(1))) is Admission.DONE
    assert read_digest(sidecar) == digest_of_table(_rows(1))


def test_no_flipped_bit_of_a_digest_file_makes_another_digest(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1, digest=digest_of_table(_rows(1)))
    sidecar = tmp_path / QUERY / "1.digest"
    written = sidecar.read_bytes()
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        sidecar.write_bytes(flipped)
        assert read_digest(sidecar) is None, bytes(flipped)


def test_digests_of_trimmed_batches_are_kept_for_a_bounded_time(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    for number in (1, 2):
        _admit(outbox, tmp_path, number, digest=f"digest-{number}")
    outbox.trim(QUERY, DIGESTS_KEPT + 1)
    assert outbox.digest(QUERY, 1) is None
    assert outbox.digest(QUERY, 2) == "digest-2"
    assert [path.name for path in (tmp_path / QUERY).glob("*.digest")] == ["2.digest"]
    assert _admit(outbox, tmp_path, 1) is Admission.DONE


def test_files_that_were_not_admitted_are_deleted_unless_their_writer_lives(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1)
    _write(tmp_path, 2, "dead")
    file = _write(tmp_path, 2, "alive")
    reopened = _open(tmp_path, living="alive")
    assert [path.name for path in (tmp_path / QUERY / "pending").iterdir()] == ["2.alive.arrow"]
    assert reopened.last_admitted(QUERY) == 1
    assert reopened.admit(QUERY, 2, file, 2, 1) is Admission.ADMITTED


def test_missing_or_misplaced_pending_file_is_refused(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    (tmp_path / "secret.arrow").write_text("not a batch")
    with pytest.raises(OutboxDamaged, match="write batch 1 again"):
        outbox.admit(QUERY, 1, f"{QUERY}/pending/1.i.arrow", 1, 1)
    for file in ("secret.arrow", f"{QUERY}/pending/../../secret.arrow", "/etc/passwd"):
        with pytest.raises(OutboxDamaged, match="not among the pending files"):
            outbox.admit(QUERY, 1, file, 1, 1)
    with pytest.raises(OutboxDamaged, match="not a query name"):
        outbox.admit("../up", 1, "x", 1, 1)


def test_a_missing_or_unreadable_batch_is_damage(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    for number in (1, 2, 3):
        _admit(outbox, tmp_path, number)
    (tmp_path / QUERY / "2.arrow").write_bytes(b"ARROW1 and then nothing")
    with pytest.raises(OutboxDamaged, match=r"2\.arrow cannot be read"):
        _open(tmp_path)
    (tmp_path / QUERY / "2.arrow").unlink()
    with pytest.raises(OutboxDamaged, match="batch 2 is missing"):
        _open(tmp_path)


def test_published_record_of_the_journal_bounds_the_batches_required(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    for number in (1, 2, 3):
        _admit(outbox, tmp_path, number)
    outbox.trim(QUERY, 1)
    reopened = _open(tmp_path)
    with pytest.raises(OutboxDamaged, match="batch 1 is missing"):
        reopened.set_outbox_floor(QUERY, 0)
    reopened = _open(tmp_path)
    reopened.set_outbox_floor(QUERY, 2)
    assert reopened.backlog(QUERY)[0] == 1
    reopened.set_outbox_floor(QUERY, 9)
    assert (reopened.last_admitted(QUERY), reopened.backlog(QUERY)) == (9, (0, 0))


def test_next_start_completes_a_drop_in_which_the_node_ended(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    directory, files = disk.root / "outbox", SimulatedFiles(disk)
    outbox = Outbox.open(directory, files=files)
    size = _write_on(files, directory)
    outbox.admit(QUERY, 1, f"{QUERY}/pending/1.i1.arrow", 1, size)
    files.crash_in = 3  # after the rename and its fsync
    with pytest.raises(Crashed):
        outbox.drop(QUERY)
    assert [left.name for left in directory.iterdir()] == [f"{DROPPED}{QUERY}"]
    Outbox.open(directory, files=SimulatedFiles(disk))
    assert list(directory.iterdir()) == []


def test_dropped_query_starts_with_an_empty_outbox(tmp_path: Path) -> None:
    outbox = _open(tmp_path)
    _admit(outbox, tmp_path, 1, digest="d")
    outbox.drop(QUERY)
    assert (outbox.last_admitted(QUERY), outbox.digest(QUERY, 1)) == (0, None)
    assert _admit(outbox, tmp_path, 1) is Admission.ADMITTED


@settings(max_examples=30)
@given(st.lists(st.one_of(st.just("admit"), st.just("reopen"), st.integers(0, 9)), max_size=25))
def test_any_order_of_admission_trim_and_restart_keeps_the_batch_numbers(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int]
) -> None:
    directory = tmp_path_factory.mktemp("outbox")
    outbox, last, floor = _open(directory), 0, 0
    for step in steps:
        match step:
            case "admit":
                last += 1
                assert _admit(outbox, directory, last) is Admission.ADMITTED
            case "reopen":
                outbox = _open(directory)
                outbox.set_outbox_floor(QUERY, floor)
            case int():
                floor = max(floor, min(step, last))
                outbox.trim(QUERY, floor)
        assert outbox.last_admitted(QUERY) == last
        assert outbox.floor(QUERY) == floor
        assert outbox.backlog(QUERY)[0] == last - floor
