"""A drop of a query's outbox that is interrupted twice leaves all of the batches, or none."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ha_engine.outbox import Admission, Outbox
from ha_engine.outbox.batch_file import digest_of_table, write_batch_file
from ha_engine.outbox.outbox import DROPPED
from ha_engine.system.files import make_directory
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles

QUERY, BATCHES = "delays", (1, 2, 3)
ROWS = pa.table({"n": [1, 2]})


@pytest.mark.parametrize("seed", range(4))
def test_deletion_that_is_interrupted_leaves_all_or_nothing(tmp_path: Path, seed: int) -> None:
    for step in count(1):
        disk = SimulatedDisk(tmp_path / str(step), Random(f"{seed} {step}"))
        disk.reorders = True
        files, directory = SimulatedFiles(disk), disk.root / "outbox"
        _fill(directory, files)
        # The process died before the fsync that makes the new name durable.
        files.rename(directory / QUERY, directory / f"{DROPPED}{QUERY}")
        files.crash_in = step
        try:
            Outbox.open(directory, files=files)
        except Crashed:
            disk.lose_power()
            found = Outbox.open(directory, files=SimulatedFiles(disk))
            left = [found.batch(QUERY, number) is not None for number in BATCHES]
            assert left in ([True] * 3, [False] * 3), f"interrupted before change {step}"
            assert not left[0] or found.last_admitted(QUERY) == 3
            assert left[0] or found.digests(QUERY) == [], f"interrupted before change {step}"
        else:
            assert step > 5
            break


def _fill(directory: Path, files: SimulatedFiles) -> None:
    """Admit some batches, all durable, with their digests."""
    outbox = Outbox.open(directory, files=files)
    for number in BATCHES:
        pending = directory / QUERY / "pending" / f"{number}.one.arrow"
        make_directory(pending.parent, files=files)
        write_batch_file(pending, ROWS, query=QUERY, number=number, files=files)
        file, size = str(pending.relative_to(directory)), pending.stat().st_size
        assert outbox.admit(QUERY, number, file, 2, size) is Admission.ADMITTED
        outbox.report_digest(QUERY, number, digest_of_table(ROWS))
    files.sync(directory)
