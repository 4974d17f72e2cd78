"""The first application on the page of each connector, run by a real node with a real broker.

The test replaces the address in the page's application by that of its broker, and leaves out the
login. All other keys stay.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import Engine

from ha_engine.demo.nodes import sample_application
from tests.connectors import (
    kafka_broker,
    mqtt_broker,
    nats_broker,
    postgres_cdc_broker,
    rabbitmq_broker,
    redis_broker,
    s3_broker,
)
from tests.connectors.kafka_jars import needs_kafka
from tests.docs.pages import ROOT, applications
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.faults.exchanges import all_read
from tests.programs import needs
from tests.waiting import wait_until

LOGIN = {"user", "password", "tls", "sasl", "ca_file"}
Row = dict[str, Any]
LARGE: Row = {"order": "b", "customer": "y", "amount": 1500.0}
ORDERS: list[Row] = [{"id": 1, "amount": 10.0}, {"id": 2, "amount": 1500.0}]


@dataclass(frozen=True)
class Place:
    """A broker that has what the page's operator creates. ``addresses`` has the keys that lead to
    it, by the type of a source or sink, ``put`` writes a message to the input, ``output`` returns
    the messages of the output.

    Of the messages ``sent``, the application passes on ``wanted``, in a form of its own.
    """

    addresses: Mapping[str, Row]
    put: Callable[[Row], object]
    output: Callable[[], list[Row]]
    sent: Sequence[Row] = tuple(ORDERS)
    wanted: Sequence[Row] = tuple(ORDERS[1:])


class Topic:
    """The messages that arrive in a topic of Kafka."""

    def __init__(self, brokers: list[str], name: str) -> None:
        self.brokers = brokers
        terms = {"bootstrap.servers": ",".join(brokers), "group.id": "reader"}
        self._consumer = Consumer(terms)
        self._consumer.assign([TopicPartition(name, 0, 0)])
        self._arrived: list[Row] = []

    def arrived(self, key: str) -> list[Row]:
        """Return the messages so far, with their keys under the name ``key``."""
        found = [one for one in self._consumer.consume(10, timeout=0.1) if one.error() is None]
        self._arrived += [{key: one.key().decode()} | json.loads(one.value()) for one in found]
        return self._arrived

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def topics(output: str, *others: str) -> Iterator[Topic]:
    """Run a broker with these topics."""
    with kafka_broker.kafka() as cluster:
        for name in (output, *others):
            kafka_broker.create(cluster.brokers, name)
        # The sink would create it with three replicas, and this cluster has one broker.
        kafka_broker.create(cluster.brokers, "ha-engine-ledger", cleanup_policy="compact")
        with closing(Topic(cluster.brokers, output)) as topic:
            yield topic


@contextmanager
def kafka() -> Iterator[Place]:
    with topics("large-orders", "orders") as topic:
        producer = Producer({"bootstrap.servers": ",".join(topic.brokers)})

        def put(order: Row) -> None:
            value = json.dumps({name: order[name] for name in ("customer", "amount")})
            producer.produce("orders", value, order["order"], timestamp=1_700_000_000_000)
            assert producer.flush(60) == 0

        yield Place(
            {"kafka": {"brokers": topic.brokers}},
            put,
            lambda: topic.arrived("order"),
            sent=[{"order": "a", "customer": "x", "amount": 10.0}, LARGE],
            wanted=[LARGE],
        )


@contextmanager
def mqtt() -> Iterator[Place]:
    cold, hot = {"device": "a", "celsius": 20.5}, {"device": "b", "celsius": 31.5}
    topic = "floor/3/temperature"
    arrived: list[Row] = []
    with (
        mqtt_broker.running_broker() as broker,
        broker.client(on_message=lambda found: arrived.append(json.loads(found.payload))) as client,
    ):
        mqtt_broker.subscribe(client, "alarms/#")
        yield Place(
            {"mqtt": broker.options},
            lambda reading: broker.publish((topic, json.dumps(reading).encode())),
            lambda: arrived,
            sent=[cold, hot],
            wanted=[hot | {"topic": topic}],
        )


@contextmanager
def nats() -> Iterator[Place]:
    with (
        nats_broker.running_broker() as broker,
        closing(nats_broker.NatsClient(broker.url)) as client,
    ):
        client.create("ORDERS", "orders.*")
        client.create("LARGE_ORDERS", "large_orders.*")
        yield Place(
            {"nats": {"servers": [broker.url]}},
            lambda order: client.put("orders.web", json.dumps(order).encode()),
            lambda: [json.loads(found.data) for found in client.stored("LARGE_ORDERS")],
        )


@contextmanager
def postgres_cdc() -> Iterator[Place]:
    with postgres_cdc_broker.new_broker() as server:
        server.run("CREATE DATABASE shop")
        server.run(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(12, 2), "
            "placed timestamptz); INSERT INTO orders VALUES (1, 'x', 10, '2026-03-01 08:00Z')",
            "shop",
        )

        def output() -> list[Row]:
            # The sink creates the table, in its first batch.
            if server.run("SELECT to_regclass('sales')", "shop") == [(None,)]:
                return []
            found = server.run("SELECT op, id, total, committed FROM sales", "shop")
            changes = [{"op": op, "id": id, "total": total} for op, id, total, _ in found]
            return sorted(changes, key=lambda change: (change["id"], change["op"]))

        yield Place(
            {
                "postgres_cdc": source_address(server),
                "postgres": {"url": f"postgresql://postgres@127.0.0.1:{server.tcp_port}/shop"},
            },
            lambda change: server.run(change["sql"], "shop"),
            output,
            sent=[
                {"sql": "INSERT INTO orders VALUES (2, 'y', 1500, '2026-03-01 09:00Z')"},
                {"sql": "DELETE FROM orders WHERE id = 1"},
            ],
            wanted=[
                {"op": "delete", "id": 1, "total": None},
                {"op": "read", "id": 1, "total": 10},
                {"op": "insert", "id": 2, "total": 1500},
            ],
        )


def source_address(server: postgres_cdc_broker.Broker) -> Row:
    address = {"host": "127.0.0.1", "port": server.tcp_port, "user": "postgres"}
    return address | {"tls": "disable"}


@contextmanager
def rabbitmq() -> Iterator[Place]:
    with rabbitmq_broker.running_broker() as broker:
        broker.declare("orders")
        broker.bind("alarms", "orders.*", "alarms")
        small, large = {"order": "a", "amount": 10.0}, {"order": "b", "amount": 1500.0}
        yield Place(
            {"rabbitmq": broker.options},
            lambda order: broker.put("orders", json.dumps(order).encode()),
            lambda: [json.loads(found.body) for found in broker.stored("alarms")],
            sent=[small, large],
            wanted=[large],
        )


@contextmanager
def redis() -> Iterator[Place]:
    with redis_broker.running_broker() as broker, broker.client() as client:
        yield Place(
            {"redis": {"host": "127.0.0.1", "port": broker.port}},
            lambda order: client.xadd("orders", {"body": json.dumps(order), "origin": "web"}),
            lambda: [json.loads(entry[b"value"]) for _, entry in client.xrange("large_orders")],
        )


@contextmanager
def s3() -> Iterator[Place]:
    with s3_broker.running_broker() as broker:
        for bucket in ("shop-events", "shop-lake"):
            broker.create_bucket(bucket)
        orders, lake = broker.folder("orders", "shop-events"), broker.folder("alarms", "shop-lake")

        def put(order: Row) -> None:
            orders.put(f"{order['id']}.jsonl.gz", gzip.compress(json.dumps(order).encode()))

        def output() -> list[Row]:
            names = [found["path"] for page in lake.list() for found in page]
            files = [pa.BufferReader(bytes(lake.get(name).bytes())) for name in sorted(names)]
            return [row for file in files for row in pq.read_table(file).to_pylist()]

        address = {"endpoint": broker.url, "region": "us-east-1"}
        address |= {"access_key_id": "a", "secret_access_key": "b"}
        yield Place({"s3": address}, put, output)


@pytest.mark.rotates
@pytest.mark.spark
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kafka, id="kafka", marks=needs_kafka()),
        pytest.param(mqtt, id="mqtt", marks=needs("mosquitto")),
        pytest.param(nats, id="nats", marks=needs("nats-server")),
        pytest.param(postgres_cdc, id="postgres_cdc"),
        pytest.param(rabbitmq, id="rabbitmq", marks=needs("rabbitmq-server")),
        pytest.param(redis, id="redis", marks=needs("redis-server")),
        pytest.param(s3, id="s3"),
    ],
)
def test_application_of_the_page_passes_on_what_its_query_selects(
    kind: Callable[[], AbstractContextManager[Place]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    engine: Engine,
    database_url: str,
) -> None:
    # A page may have a second application, which reads a log and has tests of its own.
    written, *_ = applications(ROOT / "docs" / "connectors" / f"{request.node.callspec.id}.md")
    with kind() as place:
        node = NodeUnderTest(tmp_path, at_addresses(written, place.addresses), database_url)
        with running(node):
            node.wait_running()
            wait_until(lambda: all_read(node.status()), within=60)
            for message in place.sent:
                place.put(message)
            wait_until(lambda: len(place.output()) >= len(place.wanted), within=120)
            assert place.output() == list(place.wanted)


@pytest.mark.nightly("test_application_of_the_page_passes_on_what_its_query_selects")
@pytest.mark.spark
@needs_kafka()
@needs("mosquitto")
def test_sample_of_three_brokers_alarms_of_each_warm_shipment(
    engine: Engine, tmp_path: Path, database_url: str
) -> None:
    with ExitStack() as stack:
        warehouse = stack.enter_context(postgres_cdc_broker.new_broker())
        sensors = stack.enter_context(mqtt_broker.running_broker())
        alarms = stack.enter_context(topics("cold-chain-alarms"))
        warehouse.run(
            "CREATE TABLE shipments (shipment bigint PRIMARY KEY, device text NOT NULL, "
            "celsius_max float8 NOT NULL, loaded timestamptz NOT NULL)"
        )
        load = "INSERT INTO shipments VALUES ({}, '{}', {}, '2026-03-01 08:00Z') RETURNING 1"
        warehouse.run(load.format(1, "a", 4))
        application = at_addresses(
            sample_application("cold_chain.yaml"),
            {
                "postgres_cdc": source_address(warehouse) | {"database": "postgres"},
                "mqtt": sensors.options,
                "kafka": {"brokers": alarms.brokers},
            },
        )
        node = NodeUnderTest(tmp_path, application, database_url)
        with running(node):
            node.wait_running()
            wait_until(lambda: all_read(node.status()), within=60)
            warehouse.run(
                "INSERT INTO shipments VALUES (2, 'b', 8, '2026-03-01 09:00Z') RETURNING 1"
            )
            for device, celsius in (("a", 3.5), ("a", 4.5), ("b", 7.0), ("b", 9.0)):
                reading = {"device": device, "celsius": celsius, "at": "2026-03-01T10:00:00Z"}
                sensors.publish((f"sensors/{device}/temperature", json.dumps(reading).encode()))
            wait_until(lambda: len(alarms.arrived("shipment")) >= 2, within=120)
            found = {(one["shipment"], one["celsius"]) for one in alarms.arrived("shipment")}
            assert found == {("1", 4.5), ("2", 9.0)}


def at_addresses(application: str, addresses: Mapping[str, Row]) -> str:
    """Return the application with the address of each type in its sources and sinks, and without
    logins."""
    tree = yaml.safe_load(application)
    ends = [source for stream in tree["streams"].values() for source in stream["sources"]]
    ends += [sink for query in tree["queries"].values() for sink in query["sinks"]]
    for end in ends:
        for key in LOGIN & end.keys():
            del end[key]
        end.update(addresses[end["type"]])
    return yaml.safe_dump(tree)
