"""One node does the main job: flights arrive over HTTP, exact rows in PostgreSQL, and it
answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ha_engine.client import Producer
from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark]

LEASE_TTL_SECONDS = 10
"""A long ttl, so that a takeover that waits for it is distinguishable from one that does not."""
CHECKS = ("/health", "/liveness", "/readiness", "/active", "/primary")


class Flights:
    """The year of flights, sent in order; the sink must have the rows of those sent so far."""

    def __init__(self, node: NodeUnderTest, database_url: str) -> None:
        self.node, self.database_url = node, database_url
        self._year, self._sent = departures(), 0

    def take(self, count: int) -> pa.Table:
        taken = self._year.slice(self._sent, count)
        self._sent += count
        return taken

    def send(self, count: int) -> None:
        with Producer([self.node.url]) as producer:
            for batch in self.take(count).to_batches(max_chunksize=500):
                producer.send("departures", batch)

    def require_equal(self) -> None:
        """Require exactly the rows of the reference, with at least one row from each query."""
        self.node.wait_settled()
        outcomes = compare(self.database_url, self._year.slice(0, self._sent))
        assert [outcome for outcome in outcomes if not outcome.equal] == []
        assert all(outcome.expected > 0 for outcome in outcomes)


@pytest.fixture(scope="module")
def flights(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flights]:
    """Run a node with the sample application; the tests of this module share it."""
    home = tmp_path_factory.mktemp("one-node")
    node = NodeUnderTest(
        home,
        _with_files(sample_application("flights.yaml"), home),
        module_database,
        lease={"ttl": f"{LEASE_TTL_SECONDS}s"},
    )
    with running(node):
        node.wait_running()
        yield Flights(node, module_database)


def _with_files(application: str, home: Path) -> str:
    """Return the application with a file sink beside the table of alerts, and a file source."""
    tree = yaml.safe_load(application)
    (home / "in").mkdir()
    source = {"name": "drop", "type": "file", "directory": str(home / "in"), "format": "ndjson"}
    tree["streams"]["departures"]["sources"] = [source]
    files = {"name": "files", "type": "files", "directory": str(home / "files")}
    tree["queries"]["alerts"]["sinks"].append(files)
    return yaml.safe_dump(tree, sort_keys=False)


@pytest.fixture
def node(flights: Flights) -> NodeUnderTest:
    return flights.node


def test_rows_in_postgresql_equal_the_reference(flights: Flights) -> None:
    flights.send(20_000)
    flights.require_equal()


def test_file_sink_has_the_rows_of_the_table(flights: Flights) -> None:
    flights.require_equal()
    files = sorted((flights.node.directory / "files" / "alerts").iterdir())
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = sorted((line["origin"], datetime.fromisoformat(line["hour"])) for line in lines)
    assert found == sorted(rows(flights.database_url, "SELECT origin, hour FROM alerts"))
    assert found
    ledgers = rows(flights.database_url, "SELECT sink, batch FROM ha_engine.ha_engine_ledger")
    status = flights.node.status()
    assert status is not None
    assert dict(ledgers) == {"files": status["queries"]["alerts"]["published"]["table"]}


def test_flights_from_a_file_source_arrive_like_those_of_a_producer(flights: Flights) -> None:
    lines = [_line(row) for row in flights.take(3_000).to_pylist()]
    directory = flights.node.directory / "in"
    (directory / "flights.part").write_text("\n".join([*lines, '{"origin": 7}']))
    (directory / "flights.part").rename(directory / "flights")

    def source() -> tuple[str, int, int]:
        seen = (flights.node.status() or {})["sources"]["departures"]["drop"]
        return seen["state"], seen["rows"], seen["rejected"]

    wait_until(lambda: source() == ("idle", 3_000, 1), within=SPARK_SECONDS)
    flights.require_equal()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, default=lambda moment: moment.isoformat())


def test_empty_batch_closes_a_window_when_input_pauses(flights: Flights) -> None:
    """All events are in one request, so in one batch: only a tick can act on its watermark."""
    table = flights.take(10_000)
    lines = [_line(row) for row in table.to_pylist()]
    answer = flights.node.post("departures", "\n".join(lines).encode(), "application/x-ndjson")
    assert answer.status_code == httpx.codes.OK
    flights.require_equal()


def test_a_retry_is_answered_with_the_first_position(flights: Flights) -> None:
    """Two producers have separate sequences; the node stores a repeated request once."""
    node = flights.node
    requests = {
        (producer, sequence): _json_rows(flights.take(20))
        for producer in ("gate-7", "gate-8")
        for sequence in (1, 2)
    }
    first = {who: node.send("departures", sent, who).json() for who, sent in requests.items()}
    again = {who: node.send("departures", sent, who).json() for who, sent in requests.items()}
    assert again == first
    assert all(answer["accepted"] == 20 for answer in first.values())
    assert len({answer["position"]["sequence"] for answer in first.values()}) == len(first)
    flights.require_equal()


def test_a_used_sequence_with_another_payload_is_a_conflict(flights: Flights) -> None:
    node, sent = flights.node, _json_rows(flights.take(5))
    other = [{**row, "flight": 1} for row in sent]
    assert node.send("departures", sent, ("gate-9", 4)).status_code == httpx.codes.OK
    refused = node.send("departures", other, ("gate-9", 4))
    assert (refused.status_code, refused.json()["conflict"]) == (409, "payload")
    flights.require_equal()


# -- operators and load balancers ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", CHECKS)
def test_the_active_answers_every_check_with_200(
    node: NodeUnderTest, path: str, method: str
) -> None:
    answer = node.http.request(method, path)
    assert answer.status_code == httpx.codes.OK
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert (answer.json()["ok"], answer.json()["role"]) == (True, "active")


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nothing", "/v1/streams"])
def test_an_unknown_path_is_answered_with_404_and_a_json_body(
    node: NodeUnderTest, path: str
) -> None:
    answer = node.http.get(path)
    assert (answer.status_code, answer.json()["error"]) == (404, f"GET {path}: not found")


def test_a_wrong_method_is_answered_with_405_and_a_json_body(node: NodeUnderTest) -> None:
    for method, path in (("DELETE", "/v1/status"), ("GET", "/v1/streams/departures/events")):
        answer = node.http.request(method, path)
        assert answer.status_code == httpx.codes.METHOD_NOT_ALLOWED
        assert answer.json()["error"]


def test_metrics_are_prometheus_text_and_agree_with_the_status(
    flights: Flights,
) -> None:
    flights.node.wait_settled()
    status, text = flights.node.status(), flights.node.http.get("/metrics").text
    assert status is not None
    samples = {
        (sample.name, sample.labels.get("query")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples[("ha_engine_role", None)] == 4
    assert samples[("ha_engine_epoch", None)] == status["epoch"]
    accepted = status["receive"]["accepted_events"]
    assert samples[("ha_engine_events_accepted_total", None)] == accepted
    for name, query in status["queries"].items():
        assert samples[("ha_engine_query_batch", name)] == query["batch"] > 0
        assert samples[("ha_engine_batch_seconds_count", name)] > 0


def test_status_command_prints_the_status_of_the_node(node: NodeUnderTest) -> None:
    printed = {form: node.command("status", "-f", form) for form in ("json", "yaml", "pretty")}
    assert {ended.code for ended in printed.values()} == {0}
    told = [json.loads(printed["json"].out), yaml.safe_load(printed["yaml"].out)]
    assert [(one["role"], list(one["queries"])) for one in told] == [
        ("active", ["delays", "alerts"])
    ] * 2
    assert "delays" in printed["pretty"].out


def test_the_status_command_says_when_no_node_answers(node: NodeUnderTest) -> None:
    ended = node.command("status", "--url", "http://127.0.0.1:1")
    assert ended.code == 1
    assert "no node answers at http://127.0.0.1:1" in ended.err
    assert "Traceback" not in ended.err


def test_the_publish_command_sends_a_file(flights: Flights, tmp_path: Path) -> None:
    file = tmp_path / "flights.ndjson"
    file.write_text("\n".join(json.dumps(row) for row in _json_rows(flights.take(500))))
    ended = flights.node.command("publish", "departures", str(file), "--url", flights.node.url)
    assert ended.code == 0, ended.err
    flights.require_equal()


# -- stop and start --------------------------------------------------------------------------------


def test_sigterm_releases_the_lease_and_leaves_no_process(flights: Flights) -> None:
    """Keep this test near the end of the module: it stops the shared node and the next restarts
    it."""
    node = flights.node
    assert node.stop() == 0
    assert node.left_over() == []
    holder = rows(flights.database_url, "SELECT holder_node FROM ha_engine.lease")
    assert holder == [(None,)]


def test_next_start_acquires_at_once_and_continues(flights: Flights) -> None:
    node = flights.node
    before = rows(flights.database_url, "SELECT epoch FROM ha_engine.lease")[0][0]
    node.start()
    wait_until(node.status, within=SPARK_SECONDS)
    began = time.monotonic()
    node.wait_active()
    assert time.monotonic() - began < LEASE_TTL_SECONDS, "it waited for a lease that was released"
    status = node.status()
    assert status is not None
    assert status["epoch"] == before + 1
    flights.send(5_000)
    node.wait_running()
    flights.require_equal()


def _json_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{**row, "event_time": row["event_time"].isoformat()} for row in table.to_pylist()]
