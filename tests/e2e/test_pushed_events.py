"""Prometheus, CloudEvents, syslog-ng and a WebSocket at a real node with the applications of the
guide: what the senders sent is in the table of the query, also after a kill of the node."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.connectors.server import free_port
from tests.docs.pages import ROOT, applications, yaml_blocks
from tests.e2e.databases import rows
from tests.e2e.feed import feeding, running_client
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.e2e.prometheus import PATIENCE, Prometheus, running_prometheus
from tests.e2e.syslog import logger, running_syslog_ng
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.rotates("files")]

GUIDE = ROOT / "docs" / "SENDING.md"
SENT = "up|scrape_duration_seconds|prometheus_http_requests_total"
"""A few metrics of Prometheus itself, as a pattern. All of them would make a thousand samples a
second, which are a load test."""
ORDER = {"specversion": "1.0", "source": "/shop", "type": "order"}


def application() -> str:
    """Join the applications of the guide."""
    whole: dict[str, Any] = {"name": "pushed", "streams": {}, "queries": {}}
    for tree in map(yaml.safe_load, applications(GUIDE)):
        whole["streams"] |= tree["streams"]
        whole["queries"] |= tree["queries"]
    return yaml.safe_dump(whole)


def remote_write(node: NodeUnderTest) -> list[dict[str, Any]]:
    """Return the section of the guide, with the URL of the node and without a token."""
    (section,) = [tree["remote_write"] for _, tree in yaml_blocks(GUIDE) if "remote_write" in tree]
    (target,) = section
    del target["authorization"]
    _, slash, path = target["url"].partition("/v1/")
    # A sender that retries each second has caught up before the test becomes impatient.
    target["queue_config"] |= {"batch_send_deadline": "200ms", "max_backoff": "1s"}
    keep = {"source_labels": ["__name__"], "regex": SENT, "action": "keep"}
    target["write_relabel_configs"] = [keep]
    return [target | {"url": f"{node.url}{slash}{path}"}]


@pytest.fixture(scope="module")
def node(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    node = NodeUnderTest(tmp_path_factory.mktemp("pushed"), application(), module_database)
    with running(node):
        node.wait_running()
        yield node


@needs("prometheus")
@pytest.mark.nightly("the tests of receive/test_remote_write and test_receive_push")
def test_every_sample_of_prometheus_is_in_the_table_also_after_a_kill(
    node: NodeUnderTest, module_database: str, tmp_path: Path
) -> None:
    def stored() -> set[tuple[str, str, datetime, float]]:
        found = rows(module_database, "SELECT metric, labels, time, value FROM samples")
        return {(metric, labels, at.astimezone(UTC), value) for metric, labels, at, value in found}

    def require_arrival(prometheus: Prometheus) -> None:
        sent = samples_of(prometheus)
        assert len(sent) > 10
        wait_until(lambda: sent <= stored(), within=SPARK_SECONDS, every=0.2)

    with running_prometheus(tmp_path, remote_write=remote_write(node)) as prometheus:
        wait_until(lambda: len(samples_of(prometheus)) > 10, within=PATIENCE, every=0.2)
        require_arrival(prometheus)
        node.kill_everything()
        seen = len(samples_of(prometheus))
        wait_until(lambda: len(samples_of(prometheus)) > seen + 10, within=PATIENCE, every=0.2)
        node.start()
        node.wait_running()
        require_arrival(prometheus)
        assert prometheus.query("prometheus_remote_storage_samples_failed_total > 0") == []


def samples_of(prometheus: Prometheus) -> set[tuple[str, str, datetime, float]]:
    """Return the samples that Prometheus itself has, in the form of the table."""
    found = set()
    for labels, at, value in prometheus.samples(f"{{__name__=~'{SENT}'}}"):
        others = {name: labels[name] for name in sorted(labels) if name != "__name__"}
        text = json.dumps(others, separators=(",", ":"))
        time = datetime.fromtimestamp(round(at * 1000) // 1000, UTC).replace(
            microsecond=round(at * 1000) % 1000 * 1000
        )
        found.add((labels["__name__"], text, time, float(value)))
    return found


def test_events_of_each_mode_are_in_the_table_once(
    node: NodeUnderTest, module_database: str
) -> None:
    path = "/v1/streams/orders/cloudevents"
    binary = {f"ce-{name}": value for name, value in (ORDER | {"id": "1"}).items()}
    requests: list[tuple[Any, dict[str, str]]] = [
        (order(1), binary | {"Content-Type": "application/json"}),
        (ORDER | {"id": "2", "data": order(2)}, {"Content-Type": "application/cloudevents+json"}),
        (
            [ORDER | {"id": str(number), "data": order(number)} for number in (3, 4)],
            {"Content-Type": "application/cloudevents-batch+json"},
        ),
    ]
    for body, headers in [*requests, *requests]:
        answer = node.http.post(path, content=json.dumps(body), headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")
    node.wait_settled()
    found = rows(module_database, "SELECT ce_source, ce_id, number, price FROM orders")
    assert sorted(found) == [("/shop", str(n), n, Decimal("1.10")) for n in range(1, 5)]


def order(number: int) -> dict[str, Any]:
    return {"number": number, "price": "1.10"}


@needs("syslog-ng")
@pytest.mark.parametrize(
    "kills",
    [
        False,
        pytest.param(True, marks=pytest.mark.nightly("the other case sends the same messages")),
    ],
)
def test_each_message_of_syslog_is_in_the_table_once_also_after_a_kill(
    kills: bool, node: NodeUnderTest, module_database: str
) -> None:
    mark = f"kills: {kills}"
    sent: list[tuple[str, str, str, str]] = []

    def stored() -> list[tuple[Any, ...]]:
        sql = "SELECT program, facility, severity, message FROM logs"
        return [row for row in rows(module_database, sql) if mark in row[3]]

    def send(port: int) -> None:
        for over in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with logger(port, over) as shop:
                for _ in range(20):
                    text = f'"\u00fc" \\ {len(sent)} {mark}'
                    shop.warning(text)
                    sent.append(("shop", "user", "warning", text))
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            odd = f"<14>1 0000-01-01T00:00:00+99:99 h shop - - - \0{len(sent)} {mark}".encode()
            sender.sendto(odd + b"\xff", ("127.0.0.1", port))
            sent.append(("shop", "user", "info", f"\\x00{len(sent)} {mark}\\xff"))

    nobody = f"http://127.0.0.1:{free_port()}"
    with running_syslog_ng([nobody, node.url]) as syslog_ng:
        send(syslog_ng.port)
        if kills:
            wait_until(stored, within=SPARK_SECONDS)
            node.kill_everything()
            send(syslog_ng.port)
            node.start()
            node.wait_running()
            send(syslog_ng.port)
        wait_until(lambda: sorted(stored()) == sorted(sent), within=SPARK_SECONDS)


def test_each_message_of_a_web_socket_is_in_the_table_also_after_a_lost_connection(
    node: NodeUnderTest, module_database: str, tmp_path: Path
) -> None:
    def stored() -> list[tuple[Any, ...]]:
        return rows(module_database, "SELECT symbol, price FROM prices ORDER BY price")

    def send(first: int) -> None:
        for number in range(first, first + 50):
            feed.send(json.dumps({"symbol": "\u00fc", "price": number}))
        wait_until(lambda: len(stored()) >= first + 50, within=SPARK_SECONDS)

    with feeding() as (feed, url), running_client(tmp_path, url, node):
        send(0)
        feed.drop()
        send(50)
    assert stored() == [("\u00fc", float(number)) for number in range(100)]
