"""A broker with an input that a source of a pair reads, and an output that a sink writes.

Each kind of connector has an exchange here. Messages are JSON objects ``{"n": number}``. The nodes
reach the broker through a proxy, so that a test can cut their link; the test itself does not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.connectors import (
    kafka_broker,
    mqtt_broker,
    nats_broker,
    postgres_cdc_broker,
    rabbitmq_broker,
    redis_broker,
    s3_broker,
)
from tests.connectors.deliveries import Restartable
from tests.connectors.proxy import Proxy


class Exchange:
    """A broker as the tests need it; each kind fills in the rest.

    ``exactly_once``: whether each message must be in the output once; else at least once.
    """

    exactly_once = True

    def __init__(self, server: Restartable, link: Proxy) -> None:
        self.server, self.link = server, link

    @property
    def source(self) -> dict[str, Any]:
        """Return the keys of the source in the application file, without its name."""
        raise NotImplementedError

    @property
    def sink(self) -> dict[str, Any]:
        """Return the keys of the sink in the application file, without its name."""
        raise NotImplementedError

    def put(self, numbers: Sequence[int]) -> None:
        """Write messages to the input. After an error it is unknown which are there."""
        raise NotImplementedError

    def inputs(self) -> list[int] | None:
        """Return the numbers that the input has, each once, or None if reading removes them."""
        raise NotImplementedError

    def outputs(self) -> list[int]:
        """Return the numbers that the output has."""
        raise NotImplementedError

    def end(self) -> None:
        """Kill the broker. It keeps what it has confirmed."""
        self.server.kill()

    def start(self) -> None:
        """Start the broker with its data."""
        self.server.start()

    def close(self) -> None:
        self.link.close()


class Nats(Exchange):
    def __init__(self, server: nats_broker.NatsBroker) -> None:
        super().__init__(server, Proxy(server.port))
        self._client = nats_broker.NatsClient(server.url)
        for name in ("IN", "OUT"):
            self._client.create(name, f"{name}.>")

    def _place(self, stream: str) -> dict[str, Any]:
        servers = [f"nats://127.0.0.1:{self.link.port}"]
        return {"type": "nats", "servers": servers, "stream": stream, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place("IN")

    @property
    def sink(self) -> dict[str, Any]:
        return self._place("OUT") | {"subject": "OUT.n"}

    def put(self, numbers: Sequence[int]) -> None:
        self._client.put("IN.n", *map(message, numbers))

    def inputs(self) -> list[int]:
        return self._numbers("IN")

    def outputs(self) -> list[int]:
        return self._numbers("OUT")

    def _numbers(self, stream: str) -> list[int]:
        return numbers_in(found.data for found in self._client.stored(stream))

    def close(self) -> None:
        self._client.close()
        super().close()


class RabbitMq(Exchange):
    """Durable classic queues, with persistent messages."""

    exactly_once = False

    def __init__(self, server: rabbitmq_broker.RabbitBroker) -> None:
        super().__init__(server, Proxy(server.port))
        self._broker, self._arrived = server, list[bytes]()
        server.declare("in")
        server.bind("out", "n", "out")

    @property
    def _place(self) -> dict[str, Any]:
        return {"type": "rabbitmq", "host": "127.0.0.1", "port": self.link.port, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place | {"queue": "in"}

    @property
    def sink(self) -> dict[str, Any]:
        return self._place | {"exchange": "out", "routing_key": "n"}

    def put(self, numbers: Sequence[int]) -> None:
        self._broker.put("in", *map(message, numbers))

    def inputs(self) -> None:
        return None

    def outputs(self) -> list[int]:
        self._arrived += self._broker.taken("out")
        return numbers_in(self._arrived)


class PostgresCdc(Exchange):
    """The changes of a table, whose rows the sink writes to another table of the same server."""

    def __init__(self, server: postgres_cdc_broker.Broker) -> None:
        super().__init__(server, Proxy(server.tcp_port))
        self._broker = server
        server.run("CREATE TABLE numbers (n bigint PRIMARY KEY)")

    @property
    def source(self) -> dict[str, Any]:
        return {
            "type": "postgres_cdc",
            "host": "127.0.0.1",
            "port": self.link.port,
            "database": "postgres",
            "user": "postgres",
            "tls": "disable",
            "table": "numbers",
            "operations": ["insert"],
            "operation_column": None,
            "create": True,
        }

    @property
    def sink(self) -> dict[str, Any]:
        url = f"postgresql://postgres@127.0.0.1:{self.link.port}/postgres"
        table = {"table": "copies", "auto_create": True}
        return {"type": "postgres", "url": url, **table}

    def put(self, numbers: Sequence[int]) -> None:
        values = ", ".join(f"({number})" for number in numbers)
        self._broker.run(f"INSERT INTO numbers VALUES {values} RETURNING n")

    def inputs(self) -> list[int]:
        return [number for (number,) in self._broker.run("SELECT n FROM numbers")]

    def outputs(self) -> list[int]:
        return [number for (number,) in self._broker.run("SELECT n FROM copies")]


class Redis(Exchange):
    def __init__(self, server: redis_broker.RedisBroker) -> None:
        super().__init__(server, Proxy(server.port))
        self._client = server.client()

    def _place(self, stream: str) -> dict[str, Any]:
        address = {"host": "127.0.0.1", "port": self.link.port}
        return {"type": "redis", **address, "stream": stream, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place("in")

    @property
    def sink(self) -> dict[str, Any]:
        return self._place("out")

    def put(self, numbers: Sequence[int]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd("in", {"value": message(number)})
        pipeline.execute()

    def inputs(self) -> list[int]:
        return self._numbers("in")

    def outputs(self) -> list[int]:
        return self._numbers("out")

    def _numbers(self, stream: str) -> list[int]:
        return numbers_in(fields[b"value"] for _, fields in self._client.xrange(stream))

    def close(self) -> None:
        self._client.close()
        super().close()


class Kafka(Exchange):
    """Topics of one broker; the input has three partitions."""

    def __init__(self, cluster: kafka_broker.KafkaCluster) -> None:
        broker = cluster.node(1)
        super().__init__(broker, Proxy(broker.ports["PROXY"], broker.proxy_port))
        self._address = {"bootstrap.servers": ",".join(cluster.brokers), "log_level": 0}
        kafka_broker.create(cluster.brokers, "in", partitions=3)
        kafka_broker.create(cluster.brokers, "out")
        self._producer = Producer(self._address | {"enable.idempotence": True, "linger.ms": 0})

    def _place(self, topic: str) -> dict[str, Any]:
        brokers = [f"127.0.0.1:{self.link.port}"]
        return {"type": "kafka", "brokers": brokers, "topic": topic, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place("in")

    @property
    def sink(self) -> dict[str, Any]:
        ledger = {"replication": 1, "min_insync_replicas": 1}
        return self._place("out") | {"ledger": ledger}

    def put(self, numbers: Sequence[int]) -> None:
        failed: list[KafkaError] = []
        for number in numbers:
            self._producer.produce(
                "in", message(number), on_delivery=lambda error, _: error and failed.append(error)
            )
        if self._producer.flush(PUT_SECONDS) or failed:
            raise ConnectionError("the broker does not confirm")

    def inputs(self) -> list[int]:
        return self._numbers("in")

    def outputs(self) -> list[int]:
        return self._numbers("out")

    def _numbers(self, topic: str) -> list[int]:
        """Return the numbers of the committed records up to the ends of the partitions."""
        terms = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer(self._address | terms | {"auto.offset.reset": "earliest"})
        count = len(consumer.list_topics(topic, timeout=PUT_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
        ends, values = 0, list[bytes]()
        while ends < count:
            for found in consumer.consume(10_000, timeout=LOOK_SECONDS):
                if (error := found.error()) is None:
                    values.append(found.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends += 1
        consumer.close()
        return numbers_in(values)


class Mqtt(Exchange):
    """Its broker ends by SIGTERM, because mosquitto confirms messages that it has not stored."""

    exactly_once = False

    def __init__(self, server: mqtt_broker.MqttBroker, stack: ExitStack) -> None:
        super().__init__(server, Proxy(server.port))
        self._broker = server
        self._arrived: list[bytes] = []
        listener = server.client("listener", clean=False, on_message=self._arrive)
        mqtt_broker.subscribe(stack.enter_context(listener), "out/#")

    def _arrive(self, message: Any) -> None:
        self._arrived.append(message.payload)

    @property
    def _place(self) -> dict[str, Any]:
        return {"type": "mqtt", "host": "127.0.0.1", "port": self.link.port, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place | {"topics": ["in/#"]}

    @property
    def sink(self) -> dict[str, Any]:
        return self._place | {"topic": "out/n"}

    def put(self, numbers: Sequence[int]) -> None:
        with self._broker.client() as client:
            sent = [client.publish("in/n", message(number), 1) for number in numbers]
            for one in sent:
                one.wait_for_publish(mqtt_broker.SECONDS)
            if not all(one.is_published() for one in sent):
                raise ConnectionError("the broker does not confirm")

    def inputs(self) -> None:
        return None

    def outputs(self) -> list[int]:
        return numbers_in(list(self._arrived))

    def end(self) -> None:
        self.server.stop()


class S3(Exchange):
    """A gateway before the server ends, since the server of the tests keeps its data in memory."""

    def __init__(self, server: s3_broker.S3Broker, gateway: s3_broker.Gateway) -> None:
        super().__init__(gateway, Proxy(gateway.port))
        self._in, self._out = server.folder("in"), server.folder("out")

    def _place(self, folder: str) -> dict[str, Any]:
        return {
            "type": "s3",
            "url": f"s3://{s3_broker.BUCKET}/{folder}",
            "endpoint": f"http://127.0.0.1:{self.link.port}",
            "access_key_id": "a",
            "secret_access_key": "b",
        }

    @property
    def source(self) -> dict[str, Any]:
        return self._place("in") | {"format": "json"}

    @property
    def sink(self) -> dict[str, Any]:
        return self._place("out") | {"format": "jsonl"}

    def put(self, numbers: Sequence[int]) -> None:
        self._in.put(f"{numbers[0]:012}.jsonl", b"\n".join(map(message, numbers)))

    def inputs(self) -> list[int]:
        return self._numbers(self._in)

    def outputs(self) -> list[int]:
        return self._numbers(self._out)

    @staticmethod
    def _numbers(folder: Any) -> list[int]:
        names = [found["path"] for page in folder.list() for found in page]
        return numbers_in(
            line for name in names for line in bytes(folder.get(name).bytes()).split(b"\n") if line
        )


def message(number: int) -> bytes:
    return b'{"n": %d}' % number


def numbers_in(messages: Iterable[bytes]) -> list[int]:
    return [json.loads(found)["n"] for found in messages]


def _s3(stack: ExitStack) -> S3:
    server = stack.enter_context(s3_broker.running_broker())
    return S3(server, stack.enter_context(s3_broker.gateway(server)))


PUT_SECONDS = 30.0
LOOK_SECONDS = 0.2
_Opened = Callable[[ExitStack], Exchange]
KINDS: dict[str, _Opened] = {
    "kafka": lambda stack: Kafka(stack.enter_context(kafka_broker.mortal_kafka())),
    "mqtt": lambda stack: Mqtt(stack.enter_context(mqtt_broker.running_broker()), stack),
    "nats": lambda stack: Nats(stack.enter_context(nats_broker.running_broker())),
    "postgres_cdc": lambda stack: PostgresCdc(
        stack.enter_context(postgres_cdc_broker.new_broker())
    ),
    "rabbitmq": lambda stack: RabbitMq(stack.enter_context(rabbitmq_broker.running_broker())),
    "redis": lambda stack: Redis(stack.enter_context(redis_broker.running_broker())),
    "s3": _s3,
}


def all_read(status: dict[str, Any] | None) -> bool:
    """Whether each source reads: before that, a broker may keep no message for it."""
    sources = status["sources"].values() if status else []
    states = [source["state"] for by_name in sources for source in by_name.values()]
    return bool(states) and set(states) <= {"reading", "idle"}


@contextlib.contextmanager
def running_exchange(kind: str) -> Iterator[Exchange]:
    with ExitStack() as stack:
        exchange = KINDS[kind](stack)
        stack.callback(exchange.close)
        yield exchange
