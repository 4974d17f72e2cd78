"""A few rows of the matrix of faults; ``python -m tests.faults matrix`` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import ha_engine
from tests.faults.matrix.report import (
    LINES,
    SECOND_LINES,
    Run,
    append,
    coverage,
    reached,
    runs,
)
from tests.faults.matrix.rows import ROWS
from tests.faults.matrix.runs import plan
from tests.programs import needs

pytestmark = pytest.mark.rotates("files")

SLICE = ["kill_active_node", "pause_active_one_and_a_half_ttl", "cut_active_from_passive"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
@needs("ip", "nft", "tc", "setpriv")
def test_slice_of_the_matrix_keeps_every_promise_and_is_not_repeated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults", "matrix", "--seed", "1"]
    command += ["--runs", str(len(SLICE)), "--rows", ",".join(SLICE), "--resume", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {run.row for run in runs(tmp_path)} == set(SLICE)
    assert all(run.acks > 0 and run.output > 0 for run in runs(tmp_path))
    lines = (tmp_path / LINES).read_bytes()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert f"all {len(SLICE)} runs passed" in again.stdout
    assert (tmp_path / LINES).read_bytes() == lines


def test_a_seed_gives_the_same_runs_and_choices_again() -> None:
    first, second = (plan(7, 3 * len(ROWS), 1, list(ROWS)) for _ in range(2))
    assert first == second
    assert [run.chance().random() for run in first] == [run.chance().random() for run in second]
    assert first != plan(8, 3 * len(ROWS), 1, list(ROWS))
    assert set(Counter(run.row.name for run in first).values()) == {3}
    assert len({run.key for run in first}) == len(first)
    assert len({run.chance().random() for run in first}) == len(first)


def test_the_node_logs_what_the_report_counts_as_second_lines_of_defence() -> None:
    """A message that changes would be counted as never reached."""
    source = "".join(path.read_text() for path in Path(ha_engine.__file__).parent.rglob("*.py"))
    assert [said for said in SECOND_LINES.values() if said not in source] == []
    told = reached(["fenced query=copies by_epoch=7", "fenced query=copies by_epoch=8"])
    assert +told == {"publisher fenced by the ledger": 2}


def test_lines_of_an_earlier_report_can_be_read(tmp_path: Path) -> None:
    run = Run("kill_active_node", 1, 7, 1, (), 0.5, 0.6, 4.0, 9.0, {"peer refused": 2})
    append(tmp_path, run)
    former = {key: value for key, value in asdict(run).items() if key != "reached"}
    with (tmp_path / LINES).open("a") as file:
        file.write(json.dumps(former) + "\n")
    assert runs(tmp_path) == [run, replace(run, reached={})]
    assert coverage([run]).row_count == len(SECOND_LINES) + 1
