"""``ha-engine app check``: its output and the order of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.rotates("files")]

APPLICATION = """
name: shop
streams:
  orders:
    schema: {placed_at: timestamp not null, shop: string not null, amount: int}
    watermark: {column: placed_at, delay: 10 minutes}
queries:
  good: {sql: "SELECT shop, amount FROM orders"}
  bad: {sql: "SELECT nothing FROM orders"}
"""


def test_app_check_prints_a_line_for_each_query_and_starts_spark_once(tmp_path: Path) -> None:
    file = tmp_path / "application.yaml"
    file.write_text(APPLICATION)
    command = [sys.executable, "-m", "ha_engine", "app", "check", str(file)]
    done = subprocess.run(
        [*command, "--json", "--progress"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    steps = re.sub(r"\d+\.\d s", "N s", done.stderr).splitlines()
    ours = [line for line in steps if re.match(r"starting Spark|Spark:|query ", line)]
    assert ours == [
        "starting Spark",
        "Spark: started in N s",
        "query good: planned in N s",
        "query bad: refused in N s",
    ]
    report = json.loads(done.stdout)
    assert [query["error"] is None for query in report["queries"]] == [True, False]
    assert report["seconds"] > 0


def test_progress_is_not_printed_without_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "application.yaml"
    file.write_text(APPLICATION.replace("nothing", "shop"))
    command = [sys.executable, "-m", "ha_engine", "app", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "planned in" not in done.stderr
    assert re.fullmatch(r"all can run; checked in \d+\.\d s", done.stdout.splitlines()[-1])
