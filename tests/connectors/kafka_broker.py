"""A real Kafka cluster for tests: brokers that are controllers too, each in one JVM."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.connectors.kafka_jars import classpath, first_metadata
from tests.waiting import wait_ended, wait_until

SHARED = "HA_ENGINE_TEST_KAFKA"
"""The variable with the address of a broker that another process of the run has started."""
USER, PASSWORD = "reader", "a-secret-word"
ANSWER_SECONDS = 60.0
_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class KafkaCluster:
    """Brokers with data in ``home``. The listener of ``sasl`` asks for USER and PASSWORD."""

    def __init__(self, home: Path, nodes: int = 1) -> None:
        self._home, self._nodes = home, tuple(range(1, nodes + 1))
        ports = _free_ports(3 * nodes)
        self._ports = {node: ports[3 * at : 3 * at + 3] for at, node in enumerate(self._nodes)}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        cluster_id = _id()
        for node in self._nodes:
            self._format(node, cluster_id)

    @property
    def brokers(self) -> list[str]:
        """The addresses of the brokers."""
        return [f"127.0.0.1:{ports[0]}" for ports in self._ports.values()]

    @property
    def sasl(self) -> list[str]:
        """The addresses where the brokers ask for a password."""
        return [f"127.0.0.1:{ports[1]}" for ports in self._ports.values()]

    def start(self, *nodes: int) -> None:
        """Start the brokers, or all of them, and wait until each answers."""
        for node in nodes or self._nodes:
            self._running[node] = self._launch(node)
        for node in nodes or self._nodes:
            wait_until(lambda node=node: self._answers(node), within=ANSWER_SECONDS, every=0.1)

    def kill(self, *nodes: int) -> None:
        """End brokers, or all of them, as a power failure does."""
        for node in nodes or self._nodes:
            process = self._running.pop(node)
            process.kill()
            wait_ended(process)

    def close(self) -> None:
        """End all brokers."""
        self.kill(*self._running)

    def _launch(self, node: int) -> subprocess.Popen[bytes]:
        with (self._home / f"{node}.log").open("ab") as log:
            command = ["java", *_JVM, "-cp", classpath(), "kafka.Kafka"]
            return subprocess.Popen(
                [*command, str(self._home / f"{node}.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
            )

    def _answers(self, node: int) -> bool:
        log = (self._home / f"{node}.log").read_text(errors="replace")[-4_000:]
        assert self._running[node].poll() is None, f"broker {node} has ended: {log}"
        if not _listens(self._ports[node][0]):
            return False
        client = AdminClient(
            {"bootstrap.servers": f"127.0.0.1:{self._ports[node][0]}", "log_level": 0}
        )
        try:
            return len(client.list_topics(timeout=5).brokers) >= len(self._running)
        except KafkaException:
            return False

    def _format(self, node: int, cluster_id: str) -> None:
        data, (plain, sasl, control) = self._home / str(node), self._ports[node]
        data.mkdir()
        shutil.copy(first_metadata(), data)
        meta = {
            "version": 1,
            "cluster.id": cluster_id,
            "node.id": node,
            "directory.id": _id(),
        }
        _write(data / "meta.properties", meta)
        replicas = min(3, len(self._nodes))
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
        voters = [f"{one}@127.0.0.1:{ports[2]}" for one, ports in self._ports.items()]
        settings = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{login} user_{USER}="{PASSWORD}";'
            ),
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "message.max.bytes": 32 << 20,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": max(1, replicas - 1),
            "transaction.state.log.num.partitions": 2,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": 1,
            # Others replace a killed broker soon; a single one on a slow host must not be fenced.
            "broker.session.timeout.ms": 6_000 if replicas > 1 else 60_000,
            "controlled.shutdown.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.retention.check.interval.ms": 1_000,
            "num.network.threads": 2,
            "num.io.threads": 2,
        }
        _write(self._home / f"{node}.properties", settings)


@contextmanager
def kafka(nodes: int = 1) -> Iterator[KafkaCluster]:
    """Run a cluster of its own, whose data end with it."""
    home = Path(tempfile.mkdtemp(prefix="kafka-"))
    cluster = KafkaCluster(home, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def shared_kafka() -> Iterator[list[str]]:
    """The addresses of a broker that tests share, each with topics of its own."""
    if given := os.environ.get(SHARED):
        yield [given]
    else:
        with kafka() as cluster:
            yield cluster.brokers


def new_topic(brokers: list[str], partitions: int = 1, replicas: int = 1, **config: Any) -> str:
    """Create a topic with a name of its own, and return the name."""
    name = f"topic-{uuid.uuid4().hex}"
    create(brokers, name, partitions, replicas, **config)
    return name


def create(
    brokers: list[str], name: str, partitions: int = 1, replicas: int = 1, **config: Any
) -> None:
    """Create the topic ``name``; underscores in the names of ``config`` mean points."""
    written = {key.replace("_", "."): str(value) for key, value in config.items()}
    new = NewTopic(name, partitions, replicas, config=written)
    client = admin(brokers)
    with contextlib.suppress(KeyError):
        client.create_topics([new], request_timeout=ANSWER_SECONDS)[name].result()
    wait_until(lambda: _is_led(client, name, partitions), within=ANSWER_SECONDS)


def admin(brokers: list[str]) -> AdminClient:
    """A client for administration."""
    return AdminClient({"bootstrap.servers": ",".join(brokers), "log_level": 0})


def _is_led(client: AdminClient, name: str, partitions: int) -> bool:
    topic = client.list_topics(name, timeout=ANSWER_SECONDS).topics[name]
    return len(topic.partitions) == partitions and all(
        one.leader >= 0 for one in topic.partitions.values()
    )


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
