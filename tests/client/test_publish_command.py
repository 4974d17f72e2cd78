"""``ha-engine publish`` in its normal use: a process, a file, a node behind HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from ha_engine.client.sources import open_source
from ha_engine.config import ReceiveConfig
from tests.client.test_producer import Node
from tests.waiting import wait_until

ROWS = 2_500


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "journal")
    yield node
    node.stop()


@pytest.fixture
def ndjson(tmp_path: Path) -> Path:
    path = tmp_path / "flights.ndjson"
    path.write_text("".join(f"{_event(number)}\n" for number in range(ROWS)))
    return path


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    lines = [
        f"EWR,2013-01-01 05:15:00,{number if number % 2 else ''},{number}" for number in range(ROWS)
    ]
    path.write_text("\n".join(["origin,at,delay,flight", *lines, ""]))
    return path


def parquet_of(directory: Path, **columns: Any) -> Path:
    """Write flights with these columns, in small row groups if they are few."""
    path = directory / "flights.parquet"
    length = len(next(iter(columns.values())))
    fixed = {"origin": ["EWR"] * length, "at": pa.array([0] * length, pa.timestamp("ms"))}
    table = pa.table({**fixed, **columns})
    parquet.write_table(table, path, row_group_size=700 if length < 1 << 16 else length)
    return path


def _event(flight: int) -> str:
    return json.dumps({"origin": "EWR", "at": "2013-01-01T05:15:00Z", "flight": flight})


def command(node: Node, *arguments: str) -> list[str]:
    start = [sys.executable, "-m", "ha_engine", "publish", *arguments]
    return [*start, "--url", node.url]


def publish(
    node: Node, *arguments: str, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(node, *arguments), input=given, capture_output=True, text=True, timeout=60
    )


def test_ndjson_file_is_sent_and_summarized_in_one_line(node: Node, ndjson: Path) -> None:
    done = publish(node, "flights", str(ndjson))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ROWS} rows of flights.ndjson acknowledged in ")
    assert done.stdout.count("\n") == 1
    assert sorted(node.flights(), key=int) == list(range(ROWS))  # type: ignore[call-overload]


def test_csv_file_gets_the_types_of_the_stream(node: Node, csv: Path) -> None:
    done = publish(node, "flights", str(csv), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["acked"] == ROWS
    stored = {row["flight"]: row["delay"] for row in node.call(node.solo.stored)}
    assert stored == {number: (float(number) if number % 2 else None) for number in range(ROWS)}


def test_parquet_file_is_sent_and_a_second_run_stores_no_row_twice(
    node: Node, tmp_path: Path
) -> None:
    file = parquet_of(tmp_path, flight=range(ROWS), delay=[None, 1.0] * (ROWS // 2))
    for _ in range(2):
        done = publish(node, "flights", str(file), "--producer-id", "p", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["acked"] == ROWS
    assert node.flights() == list(range(ROWS))


def test_mismatched_parquet_column_is_named_in_one_sentence(node: Node, tmp_path: Path) -> None:
    done = publish(node, "flights", str(parquet_of(tmp_path, flight=["1"] * 3)))
    assert (done.returncode, node.flights()) == (1, [])
    assert done.stderr == (
        "ha-engine: flights.parquet: column 'flight' is string, and the stream declares int64; "
        "convert the column before you send it\n"
    )


def test_error_names_a_bad_parquet_row_by_its_number(node: Node, tmp_path: Path) -> None:
    file = parquet_of(tmp_path, delay=[0.0] * 1200 + [float("nan")])
    done = publish(node, "flights", str(file), "--batch-rows", "100")
    assert "row 1201 of flights.parquet: field 'delay' is NaN, expected" in done.stderr
    assert done.stdout.startswith("1200 rows of flights.parquet acknowledged")


def test_large_parquet_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    """The file has one row group, which is the worst case."""
    rows = 1_000_000
    columns = {"flight": np.random.default_rng(1).integers(0, 1 << 60, rows)}
    source = open_source(parquet_of(tmp_path, **columns), "auto")
    before = pa.total_allocated_bytes()
    seen = 0
    for part in source.parts(1_000, list):
        seen += part.payload.rows
        assert pa.total_allocated_bytes() - before < 4 << 20
    assert (seen, source.tell()) == (rows, (tmp_path / "flights.parquet").stat().st_size)
    source.close()


def test_a_file_is_sent_over_grpc_too(tmp_path: Path, csv: Path) -> None:
    node = Node(tmp_path / "journal", scheme="grpc://")
    done = publish(node, "flights", str(csv))
    assert done.returncode == 0, done.stderr
    assert node.flights() == list(range(ROWS))
    unknown = publish(node, "nope", str(csv))
    assert (unknown.returncode, "there is no stream 'nope'" in unknown.stderr) == (1, True)
    node.stop()


def test_standard_input_is_sent(node: Node) -> None:
    done = publish(node, "flights", "-", given=_event(1) + "\n")
    assert (done.returncode, node.flights()) == (0, [1])


def test_a_second_run_with_a_producer_id_stores_nothing_twice(tmp_path: Path, ndjson: Path) -> None:
    node = Node(tmp_path / "few", ReceiveConfig(dedup_window=8))
    again = ("flights", str(ndjson), "--producer-id", "p", "--batch-rows", "100")
    assert publish(node, *again).returncode == 0
    done = publish(node, *again)
    assert done.returncode == 0, done.stderr
    assert (
        f"{ROWS} rows of flights.ndjson acknowledged, 1700 of them in an earlier run" in done.stdout
    )
    assert len(node.flights()) == ROWS
    node.stop()


def test_another_file_under_the_same_producer_id_fails(
    tmp_path: Path, node: Node, ndjson: Path
) -> None:
    publish(node, "flights", str(ndjson), "--producer-id", "p")
    second = tmp_path / "second.ndjson"
    second.write_text(_event(-1) + "\n")
    done = publish(node, "flights", str(second), "--producer-id", "p")
    assert done.returncode == 1
    assert "was used for another payload" in done.stderr
    assert len(node.flights()) == ROWS


def test_file_that_no_kept_sequence_can_confirm_fails(tmp_path: Path, ndjson: Path) -> None:
    node = Node(tmp_path / "few", ReceiveConfig(dedup_window=8))
    publish(node, "flights", str(ndjson), "--producer-id", "p", "--batch-rows", "100")
    second = tmp_path / "second.ndjson"
    second.write_text(_event(-1) + "\n")
    done = publish(node, "flights", str(second), "--producer-id", "p")
    assert done.returncode == 1
    assert "use a different producer id for each file" in done.stderr
    node.stop()


def test_error_names_the_line_of_a_bad_row_and_acked_rows_stay(node: Node, ndjson: Path) -> None:
    lines = ndjson.read_text().splitlines()
    lines[1200:1201] = ["", '{"origin":1}']
    ndjson.write_text("\n".join(lines))
    done = publish(node, "flights", str(ndjson), "--batch-rows", "100", "--in-flight", "1")
    assert done.returncode == 1
    assert "line 1202 of flights.ndjson: field " in done.stderr
    assert done.stdout.startswith("1200 rows of flights.ndjson acknowledged")
    assert node.flights() == list(range(1200))


def test_corrected_file_continues_where_it_stopped(node: Node, ndjson: Path) -> None:
    good = ndjson.read_text()
    lines = good.splitlines()
    lines[1200] = '{"origin":1}'
    ndjson.write_text("\n".join(lines))
    options = ("flights", str(ndjson), "--producer-id", "p", "--batch-rows", "100")
    assert publish(node, *options).returncode == 1
    ndjson.write_text(good)
    assert publish(node, *options).returncode == 0
    assert sorted(node.flights(), key=int) == list(range(ROWS))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "EWR,2013-01-01 05:15:00,x,1",
            "line 1002 of flights.csv: field 'delay' is \"x\"",
        ),
        ("EWR,yesterday,1,1", "line 1002 of flights.csv: field 'at' is \"yesterday\", expected a"),
        ("EWR,2013-01-01 05:15:00", "line 1002: the row has 2 fields, but the header has 4"),
    ],
)
def test_error_names_a_bad_csv_line(node: Node, csv: Path, line: str, reason: str) -> None:
    lines = csv.read_text().splitlines()
    lines[1001] = line
    csv.write_text("\n".join(lines))
    done = publish(node, "flights", str(csv))
    assert done.returncode == 1
    assert reason in done.stderr


def test_ctrl_c_prints_the_number_of_acked_rows(node: Node, ndjson: Path) -> None:
    options = ("flights", str(ndjson), "--rate", "100", "--batch-rows", "10")
    # A shell makes its background processes, perhaps these tests, ignore Ctrl-C.
    words = ["env", "--default-signal=INT", *command(node, *options)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(node.flights()) > 100, within=30)
    running.send_signal(signal.SIGINT)
    said, complaint = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "stopped by Ctrl-C; the rest of the file was not sent" in complaint
    assert said.startswith(f"{len(node.flights())} rows of flights.ndjson acknowledged")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["flights", "missing.csv"], 2, "missing.csv cannot be read: No such file or directory"),
        (["flights", "LICENSE"], 2, "name 'LICENSE' does not show the format; add --format"),
        (["flights", "LICENSE", "--format", "parquet"], 2, "LICENSE is not readable as Parquet: "),
        (
            ["flights", "-", "--format", "parquet"],
            2,
            "cannot be read from standard input; name the",
        ),
        (["flights", "x.csv", "--format", "xml"], 2, "format 'xml' is not known"),
        (["nope", "-", "--format", "csv"], 1, "there is no stream 'nope'"),
    ],
)
def test_invalid_call_ends_with_one_sentence(
    node: Node, arguments: list[str], code: int, reason: str
) -> None:
    done = publish(node, *arguments, given="a\n1\n")
    assert done.returncode == code
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_silent_node_ends_the_command_with_one_sentence(ndjson: Path) -> None:
    environment = os.environ | {"HA_ENGINE_URL": "http://127.0.0.1:1"}
    arguments = [sys.executable, "-m", "ha_engine", "publish", "flights", str(ndjson)]
    done = subprocess.run(
        [*arguments, "--deadline", "0.5"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no node answered for 0.5 s; the last attempt: http://127.0.0.1:1: " in done.stderr
