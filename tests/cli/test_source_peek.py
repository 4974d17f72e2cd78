"""``ha-engine source peek`` and the connections of ``ha-engine app check``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ha_engine.errors import EngineError
from ha_engine.node.connections import check_connections, peek
from ha_engine.query.application import StreamApplication, load_application

APPLICATION = """
name: orders
streams:
  orders:
    schema: {id: int not null, file: string}
    sources:
      - {name: spool, type: spool, directory: spool, format: json, columns: {file: name}}
      - {name: drop, type: file, directory: /nowhere/drop, format: ndjson}
  other:
    schema: {id: int not null}
    sources: [{name: drop, type: file, directory: DIRECTORY, format: ndjson}]
queries:
  all: {sql: SELECT id FROM orders, sinks: [{name: out, type: stdout}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "drop").mkdir()
    rows = '{"id": 1}\n{"id": "x"}\n{"id": 3}\n'
    (tmp_path / "drop" / "a").write_text(rows)
    path = tmp_path / "orders.yaml"
    path.write_text(APPLICATION.replace("DIRECTORY", str(tmp_path / "drop")))
    return path


@pytest.fixture
def application(plugin_example: None, file: Path) -> StreamApplication:
    return load_application(file)


def test_peek_shows_the_next_rows_and_takes_none(application: StreamApplication) -> None:
    for _ in range(2):
        found = peek(application, "default", "other/drop", None, 10, 0.0)
        assert found.events.to_pylist() == [{"id": 1}, {"id": 3}]
        [(place, reason)] = found.dead_letters
        assert place.endswith("a:2")
        assert "expected" in reason
    rest = peek(application, "default", "other/drop", found.offset, 10, 0.0)
    assert (rest.events.num_rows, rest.offset) == (0, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("drop", "several sources are named 'drop'; name one of orders/spool, orders/drop"),
        ("dorp", "no source is named 'dorp'"),
        ("spool", "a source of type spool cannot show rows without taking them"),
        ("orders/drop", "/nowhere/drop"),
    ],
)
def test_peek_that_is_not_possible_says_why(
    application: StreamApplication, name: str, told: str
) -> None:
    with pytest.raises(EngineError, match=told):
        peek(application, "default", name, None, 10, 0.0)


def test_each_source_and_sink_is_checked(application: StreamApplication) -> None:
    found = {one.place: one for one in check_connections(application, "default")}
    assert list(found) == ["orders/spool", "orders/drop", "other/drop", "all/out"]
    assert "/nowhere/drop cannot be read" in (found["orders/drop"].error or "")
    assert (found["other/drop"].checked, found["other/drop"].error) == (True, None)
    assert not found["orders/spool"].checked


def ha_engine(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ha_engine", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_prints_rows_and_rejected_rows(tmp_path: Path, file: Path) -> None:
    plain = "\n".join(line for line in file.read_text().splitlines() if "type: spool" not in line)
    file.write_text(plain)
    done = ha_engine("source", "peek", str(file), "other/drop", "--from-beginning")
    assert (done.returncode, done.stdout) == (0, '{"id":1}\n{"id":3}\n')
    assert "a:2: would be a dead letter: " in done.stderr
    words = ("source", "peek", str(file), "other/drop", "--from-beginning", "-n", "1", "--json")
    tree = json.loads(ha_engine(*words).stdout)
    assert tree["rows"] == [{"id": 1}]
    after = ha_engine(
        "source", "peek", str(file), "other/drop", "--offset", tree["offset"], "--json"
    )
    assert json.loads(after.stdout)["rows"] == [{"id": 3}]
    nobody = ha_engine("source", "peek", str(file), "other/drop", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert "no node answers at http://127.0.0.1:9" in nobody.stderr
