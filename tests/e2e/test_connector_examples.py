"""The application on the page of each connector, run by a real node with a real broker.

The test replaces the address in the page's application by that of its broker, and leaves out the
login. All other keys stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Engine

from tests.connectors import nats_broker, redis_broker
from tests.docs.pages import ROOT, applications
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.programs import needs
from tests.waiting import wait_until

SECRETS = {"user", "password", "tls", "sasl", "ca_file"}
LARGE, SMALL = {"id": 1, "amount": 1500.0}, {"id": 2, "amount": 10.0}


@dataclass(frozen=True)
class Place:
    """A broker that has what the page's operator creates. ``address`` has the keys that lead to it,
    ``put`` writes a message to the input, ``output`` returns the messages of the output."""

    address: dict[str, Any]
    put: Callable[[dict[str, Any]], None]
    output: Callable[[], list[dict[str, Any]]]


@contextmanager
def nats() -> Iterator[Place]:
    with nats_broker.running_broker() as broker:
        client = nats_broker.NatsClient(broker.url)
        client.create("ORDERS", "orders.*")
        client.create("LARGE_ORDERS", "large_orders.*")
        yield Place(
            {"servers": [broker.url]},
            lambda order: client.put("orders.web", json.dumps(order).encode()),
            lambda: [json.loads(found.data) for found in client.stored("LARGE_ORDERS")],
        )
        client.close()


@contextmanager
def redis() -> Iterator[Place]:
    with redis_broker.running_broker() as broker, broker.client() as client:
        yield Place(
            {"host": "127.0.0.1", "port": broker.port},
            lambda order: client.xadd("orders", {"body": json.dumps(order), "origin": "web"}),
            lambda: [json.loads(entry[b"value"]) for _, entry in client.xrange("large_orders")],
        )


@pytest.mark.rotates
@pytest.mark.spark
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(nats, id="nats", marks=needs("nats-server")),
        pytest.param(redis, id="redis", marks=needs("redis-server")),
    ],
)
def test_application_of_the_page_passes_on_a_large_order(
    kind: Callable[[], AbstractContextManager[Place]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    engine: Engine,
    database_url: str,
) -> None:
    (written,) = applications(ROOT / "docs" / "connectors" / f"{request.node.callspec.id}.md")
    with kind() as place:
        node = NodeUnderTest(tmp_path, at_address(written, place.address), database_url)
        with running(node):
            node.wait_running()
            place.put(SMALL)
            place.put(LARGE)
            wait_until(place.output, within=120)
            assert place.output() == [LARGE]


def at_address(application: str, address: dict[str, Any]) -> str:
    tree = yaml.safe_load(application)
    ends = [source for stream in tree["streams"].values() for source in stream["sources"]]
    ends += [sink for query in tree["queries"].values() for sink in query["sinks"]]
    for end in ends:
        for secret in SECRETS & end.keys():
            del end[secret]
        assert end.keys() & address.keys(), "the page's application names no address"
        end.update(address)
    return yaml.safe_dump(tree)
