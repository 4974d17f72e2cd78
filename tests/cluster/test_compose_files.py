"""The programs of ``compose/cluster`` take its files: Spark's daemons, Prometheus and Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.standalone import Daemon, Master, Worker, ZooKeeper, url_of
from tests.connectors.kafka_jars import classpath, needs_kafka
from tests.connectors.server import Server
from tests.e2e.prometheus import PATIENCE, running_prometheus
from tests.programs import needs
from tests.waiting import wait_until

FILES = Path(__file__).parents[2] / "compose" / "cluster"


def spark_settings(zookeeper: ZooKeeper) -> dict[str, str]:
    """The settings of the masters and workers, with another ZooKeeper."""
    lines = (FILES / "spark.conf").read_text().splitlines()
    found = dict(line.split() for line in lines if line.startswith("spark."))
    return found | {"spark.deploy.zookeeper.url": f"127.0.0.1:{zookeeper.port}"}


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[dict[str, list[Daemon]]]:
    """Two masters and a worker, by the job that scrapes them."""
    with ExitStack() as stack:

        def start(server: Server) -> None:
            stack.callback(server.kill)
            server.start()

        def directory(name: str) -> Path:
            (tmp_path / name).mkdir()
            return tmp_path / name

        start(keeper := ZooKeeper(directory("zookeeper")))
        settings = spark_settings(keeper)
        masters = [Master(directory(f"master-{number}"), settings) for number in (1, 2)]
        for master in masters:
            start(master)
        start(worker := Worker(directory("worker"), url_of(masters), 1, "600m", settings))
        yield {"spark-masters": [*masters], "spark-workers": [worker]}


@needs("prometheus")
@pytest.mark.nightly("test_compose.py::test_prometheus_takes_the_config_and_scrapes_services")
def test_prometheus_gets_the_metrics_of_masters_and_workers(
    daemons: dict[str, list[Daemon]], tmp_path: Path
) -> None:
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    jobs = [job for job in config["scrape_configs"] if job["job_name"] in daemons]
    assert len(jobs) == len(daemons)
    for job in jobs:
        ports = [daemon.web_port for daemon in daemons[job["job_name"]]]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (home := tmp_path / "prometheus").mkdir()
    with running_prometheus(home, scrape_configs=jobs) as prometheus:
        wait_until(lambda: [*prometheus.values("up").values()] == [1.0] * 3, within=PATIENCE)
        wait_until(
            lambda: 1.0 in prometheus.values("metrics_master_aliveWorkers_Value").values(),
            within=PATIENCE,
        )


@needs_kafka()
@pytest.mark.nightly("test_compose.py::test_every_mounted_file_exists")
def test_kafka_takes_the_settings_of_each_broker(tmp_path: Path) -> None:
    services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    brokers = {name: one for name, one in services.items() if name.startswith("kafka-")}
    assert len(brokers) == 3
    for name, broker in brokers.items():
        (home := tmp_path / name).mkdir()
        format_storage(home, dict(broker["environment"]))


def format_storage(home: Path, environment: dict[str, Any]) -> None:
    """Let Kafka read the settings as the image writes them, and format an empty directory."""
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    settings["log.dirs"] = home / "data"
    file = home / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", classpath()]
    command += ["kafka.tools.StorageTool", "format", "-t", environment["CLUSTER_ID"]]
    done = subprocess.run([*command, "-c", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (home / "data" / "meta.properties").exists()
