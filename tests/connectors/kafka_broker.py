"""A real Kafka cluster for tests: brokers that are controllers too, each in one JVM."""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.connectors.kafka_jars import classpath, first_metadata
from tests.connectors.server import Server, free_port
from tests.sync.authority import Authority
from tests.waiting import wait_until

USER, PASSWORD = "reader", "a-secret-word"
ANSWER_SECONDS = 60.0
_HEAP = ("-Xms64m", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "BOTH": "SASL_SSL",
    "PROXY": "PLAINTEXT",
}
"""The protocol of each listener. SASL asks for credentials, TLS for the certificate of the client,
and BOTH for credentials through an encrypted connection. The brokers send clients of PROXY to their
``proxy_port``, where a test may run a proxy."""
_LOGIN = "org.apache.kafka.common.security"
_MECHANISMS = {
    "plain": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-512": f"{_LOGIN}.scram.ScramLoginModule required;",
    "oauthbearer": (
        f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}


class Broker(Server):
    """The broker and controller ``node`` of a cluster, with its own directory."""

    program = "java"
    ready_seconds = ANSWER_SECONDS

    def __init__(self, directory: Path, node: int) -> None:
        directory.mkdir()
        super().__init__(directory)
        self.node = node
        self.ports = {name: free_port() for name in (*_LISTENERS, "CONTROLLER")}
        self.port, self.proxy_port = self.ports["PLAINTEXT"], free_port()

    def arguments(self) -> list[str]:
        words = [*_HEAP, "-cp", classpath(), "kafka.Kafka"]
        return [*words, str(self.directory / "server.properties")]

    def answers(self, connection: socket.socket) -> bool:
        """Whether the cluster lets clients use this broker."""
        client = admin([f"127.0.0.1:{self.port}"])
        try:
            return self.node in client.list_topics(timeout=5).brokers
        except KafkaException:
            return False

    def format(self, cluster_id: str, settings: dict[str, Any]) -> None:
        """Write the files that the first start needs."""
        data = self.directory / "data"
        data.mkdir()
        shutil.copy(first_metadata(), data)
        meta = {"version": 1, "cluster.id": cluster_id}
        _write(data / "meta.properties", meta | {"node.id": self.node, "directory.id": _id()})
        advertised = self.ports | {"PROXY": self.proxy_port}
        del advertised["CONTROLLER"]
        own = {
            "node.id": self.node,
            "log.dirs": data,
            "listeners": _addresses(self.ports),
            "advertised.listeners": _addresses(advertised),
        }
        _write(self.directory / "server.properties", settings | own)


def _addresses(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


class KafkaCluster:
    """Brokers with data in ``home``. ``session_seconds`` after the death of a broker the cluster
    notices; only then the broker may start again."""

    def __init__(self, home: Path, nodes: int = 1, session_seconds: float = 60.0) -> None:
        self._home = home
        self.certificates = Authority(home / "certificates")
        self._brokers = [Broker(home / str(node), node) for node in range(1, nodes + 1)]
        cluster_id, settings = _id(), self._settings(session_seconds)
        for broker in self._brokers:
            broker.format(cluster_id, settings)

    @property
    def brokers(self) -> list[str]:
        """The addresses of the brokers."""
        return self.addresses("PLAINTEXT")

    def addresses(self, listener: str) -> list[str]:
        return [f"127.0.0.1:{broker.ports[listener]}" for broker in self._brokers]

    def node(self, number: int) -> Broker:
        return self._brokers[number - 1]

    def start(self, *nodes: int) -> None:
        """Start the brokers, or all of them, and wait until each answers."""
        for broker in self._some(nodes):
            broker.launch()
        for broker in self._some(nodes):
            broker.await_ready()

    def kill(self, *nodes: int) -> None:
        """End brokers, or all of them, as a power failure does."""
        for broker in self._some(nodes):
            broker.kill()

    def _some(self, nodes: tuple[int, ...]) -> list[Broker]:
        return [self.node(number) for number in nodes] if nodes else self._brokers

    def _settings(self, session_seconds: float) -> dict[str, Any]:
        replicas = min(3, len(self._brokers))
        voters = [f"{one.node}@127.0.0.1:{one.ports['CONTROLLER']}" for one in self._brokers]
        protocols = [f"{name}:{protocol}" for name, protocol in _LISTENERS.items()]
        return {
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            **self._security(),
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
            "broker.session.timeout.ms": round(session_seconds * 1000),
            "broker.heartbeat.interval.ms": 500,
            # A broker that starts again waits for the end of its former session, and gives up
            # after this time, which must be the longer one.
            "initial.broker.registration.timeout.ms": 600_000,
            "controlled.shutdown.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.retention.check.interval.ms": 1_000,
            "num.network.threads": 2,
            "num.io.threads": 2,
        }

    def _security(self) -> dict[str, Any]:
        files = self.certificates.files("broker", san="IP:127.0.0.1")
        pair = self._home / "broker.pem"
        pair.write_text(Path(files["key"]).read_text() + Path(files["certificate"]).read_text())
        found: dict[str, Any] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": pair,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files["ca"],
            "listener.name.tls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS).upper(),
        }
        for listener in ("sasl", "both"):
            for mechanism, login in _MECHANISMS.items():
                found[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = login
        return found


@contextmanager
def kafka(nodes: int = 1, session_seconds: float = 60.0) -> Iterator[KafkaCluster]:
    """Run a cluster, whose data end with it."""
    home = Path(tempfile.mkdtemp(prefix="kafka-"))
    cluster = KafkaCluster(home, nodes, session_seconds)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(home, ignore_errors=True)


def mortal_kafka(nodes: int = 1) -> contextlib.AbstractContextManager[KafkaCluster]:
    """A cluster whose brokers may be killed, and start again soon. A host that pauses a broker for
    seconds interrupts its service, so tests that expect no interruption use ``kafka``."""
    return kafka(nodes, session_seconds=3.0)


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
    client.create_topics([new], request_timeout=ANSWER_SECONDS)[name].result()
    wait_until(lambda: _is_led(client, name, partitions), within=ANSWER_SECONDS)


def admin(brokers: list[str]) -> AdminClient:
    """A client for administration."""
    return AdminClient({"bootstrap.servers": ",".join(brokers), "log_level": 0})


@contextmanager
def threads_end() -> Iterator[None]:
    """Require that all threads that begin in the block end without the garbage collector, which may
    come much later."""
    before = _threads()
    gc.disable()
    try:
        yield
        wait_until(lambda: not _threads() - before)
    finally:
        gc.enable()


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _is_led(client: AdminClient, name: str, partitions: int) -> bool:
    topic = client.list_topics(name, timeout=ANSWER_SECONDS).topics[name]
    return len(topic.partitions) == partitions and all(
        one.leader >= 0 for one in topic.partitions.values()
    )


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
