"""The containers' files, as far as a test can check them without running containers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.config.load import load_config, load_tree
from ha_engine.config.observer import ObserverConfig
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.query.application import load_application
from tests.connectors.kafka_jars import SPARK, paths
from tests.programs import found, needs

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose"
CLUSTER = COMPOSE / "cluster"


def services_in(directory: Path) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((directory / "compose.yaml").read_text())["services"]
    return services


def check(program: str, *words: str | Path) -> None:
    """Require that ``program`` accepts a file."""
    path = found(program)
    assert path, f"{program} is missing"
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SERVICES = {directory: services_in(directory) for directory in (COMPOSE, CLUSTER)}
each_file = pytest.mark.parametrize("directory", SERVICES, ids=lambda one: one.name)


@each_file
@pytest.mark.parametrize("name", ["node-a", "node-b"])
def test_the_config_of_each_node_is_valid_and_names_the_other(directory: Path, name: str) -> None:
    environment = SERVICES[directory][name]["environment"]
    config = load_config(directory / "ha-engine.yaml", environment)
    (peer,) = config.event_sync.peers
    assert (config.node.id, {name, peer}) == (name, {"node-a", "node-b"})
    addresses = {config.event_sync.advertise, config.http.advertise}
    assert addresses == {f"{name}:9893", f"http://{name}:8080"}


def test_the_observer_watches_the_nodes_and_gets_their_output() -> None:
    service = SERVICES[COMPOSE]["observer"]
    assert service["command"] == ["observe"]
    (mounted, path, _), *_ = (one.split(":") for one in service["volumes"])
    assert path == service["environment"]["HA_ENGINE_CONFIG"]
    config = load_tree(ObserverConfig, COMPOSE / mounted, service["environment"]).config
    nodes = {f"node-{one}": f"http://node-{one}:8080" for one in "ab"}
    assert {name: str(url).rstrip("/") for name, url in config.watch.nodes.items()} == nodes
    assert f"observer:{config.watch.data_dir}" in service["volumes"]
    pair = load_config(COMPOSE / "ha-engine.yaml", SERVICES[COMPOSE]["node-a"]["environment"])
    assert pair.observe.keep_batches > 0


@pytest.mark.parametrize("name", ["node-a", "node-b"])
def test_the_balancer_has_the_address_of_each_node(name: str) -> None:
    services = SERVICES[COMPOSE]
    address = services[name]["networks"]["default"]["ipv4_address"]
    assert f"{address}:8080" in services["haproxy"]["environment"].values()


@each_file
def test_the_config_of_the_database_job_is_valid(directory: Path) -> None:
    load_config(directory / "ha-engine.yaml", SERVICES[directory]["db-init"]["environment"])


@each_file
def test_each_service_whose_health_another_awaits_has_a_check(directory: Path) -> None:
    services = SERVICES[directory]
    awaited = {
        name
        for service in services.values()
        if isinstance(wanted := service.get("depends_on", {}), dict)
        for name, one in wanted.items()
        if one["condition"] == "service_healthy"
    }
    assert "postgres" in awaited
    assert all(services[name]["healthcheck"]["test"] for name in awaited)


def test_no_health_check_of_a_broker_starts_a_jvm() -> None:
    checks = {name: one.get("healthcheck") for name, one in SERVICES[CLUSTER].items()}
    brokers = [check["test"] for name, check in checks.items() if name.startswith("kafka-")]
    assert len(brokers) == 3
    assert [check for check in brokers if "/opt/kafka/bin" in " ".join(check)] == []


@each_file
def test_every_port_is_published_on_loopback_only(directory: Path) -> None:
    ports = [port for one in SERVICES[directory].values() for port in one.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@each_file
def test_every_image_has_the_tag_of_a_release(directory: Path) -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    images = {service["image"] for service in SERVICES[directory].values()} - {"ha-engine"}
    images.update(re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE))
    tags = [image.rpartition(":")[2] for image in images]
    assert len(tags) > 4
    assert [tag for tag in tags if not re.match(r"v?\d|bookworm", tag)] == []
    installs = re.findall(r"pip install (.*)", dockerfile)
    assert len(installs) == 2
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs)


@each_file
def test_every_mounted_file_exists(directory: Path) -> None:
    volumes = [
        one for service in SERVICES[directory].values() for one in service.get("volumes", ())
    ]
    mounted = [volume.split(":")[0] for volume in volumes if volume.startswith(".")]
    assert mounted
    assert [name for name in mounted if not (directory / name).exists()] == []


def test_the_image_has_the_files_that_its_build_reads() -> None:
    ignored = (COMPOSE / "Dockerfile.dockerignore").read_text()
    kept = re.findall(r"^!(.+)$", ignored, flags=re.MULTILINE)
    assert [pattern for pattern in kept if not list(ROOT.glob(pattern))] == []
    scripts = re.findall(r"(compose/\w+\.py)", (COMPOSE / "Dockerfile").read_text())
    assert scripts
    assert set(scripts) <= set(kept)


def test_the_dashboard_shows_metrics_that_a_node_exposes() -> None:
    board = (COMPOSE / "grafana" / "dashboards" / "ha-engine.json").read_text()
    assert json.loads(board)["panels"]
    shown = {name.removesuffix("_bucket") for name in re.findall(r"ha_engine_\w+", board)}
    documented = set(re.findall(r"`(ha_engine_\w+)`", (ROOT / "docs" / "METRICS.md").read_text()))
    assert shown - {"ha_engine"} <= documented


@needs("promtool")
def test_prometheus_takes_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    board = json.loads((COMPOSE / "grafana" / "dashboards" / "ha-engine.json").read_text())
    panels = [one for panel in board["panels"] for one in panel.get("panels", [panel])]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    assert len(rules) > len(panels)
    (file := tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})
    )
    check("promtool", "check", "rules", file)


# -- the cluster -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["receiver-1", "receiver-2"])
def test_the_config_of_each_receiver_is_valid(name: str) -> None:
    environment = SERVICES[CLUSTER][name]["environment"]
    config = load_tree(ReceiverConfig, CLUSTER / "receiver.yaml", environment).config
    assert config.http.advertise == f"http://{name}:8080"


def test_the_application_differs_from_the_sample_by_the_log_of_its_stream() -> None:
    tree = yaml.safe_load((CLUSTER / "flights.yaml").read_text())
    log = tree["streams"]["departures"].pop("log")
    assert tree == yaml.safe_load((ROOT / "conf" / "applications" / "flights.yaml").read_text())
    load_application(CLUSTER / "flights.yaml")
    services = SERVICES[CLUSTER]
    assert log["brokers"] == [f"{name}:9092" for name in services if name.startswith("kafka-")]
    assert f"--topic={log['topic']}" in services["topic"]["command"]


def test_nodes_masters_and_workers_fit_each_other() -> None:
    config = load_config(CLUSTER / "ha-engine.yaml", SERVICES[CLUSTER]["node-a"]["environment"])
    execution = config.execution
    spark = dict(
        line.split(maxsplit=1)
        for line in (CLUSTER / "spark.conf").read_text().splitlines()
        if line.startswith("spark.")
    )
    assert spark["spark.authenticate.secret"] == execution.secret.get_secret_value()
    workers = [one for name, one in SERVICES[CLUSTER].items() if name.startswith("worker-")]
    assert all(execution.master in one["command"] for one in workers)
    cores = sum(int(one["command"][one["command"].index("--cores") + 1]) for one in workers)
    assert cores == 2 * execution.executors.count * execution.executors.cores
    mounted = [one for one in SERVICES[CLUSTER].values() if one.get("volumes")]
    shared = f"checkpoint:{execution.checkpoint}"
    assert len([one for one in mounted if shared in one["volumes"]]) == 2 + len(workers)


def test_the_image_has_the_jars_that_the_queries_name() -> None:
    config = load_config(CLUSTER / "ha-engine.yaml", SERVICES[CLUSTER]["node-a"]["environment"])
    target = "/opt/ha-engine/share/spark"
    assert f"compose/spark_jars.py {target}" in (COMPOSE / "Dockerfile").read_text()
    named = config.query.spark["spark.jars"].split(",")
    assert sorted(named) == sorted(f"{target}/{path.name}" for path in paths(SPARK))


@needs("haproxy")
def test_haproxy_takes_the_config_of_the_cluster() -> None:
    check("haproxy", "-c", "-f", CLUSTER / "haproxy.cfg")
    servers = re.findall(r"^ +server (\S+)", (CLUSTER / "haproxy.cfg").read_text(), re.MULTILINE)
    assert servers == [name for name in SERVICES[CLUSTER] if name.startswith("receiver-")]


@needs("promtool")
@each_file
def test_prometheus_takes_the_config_and_scrapes_services(directory: Path, tmp_path: Path) -> None:
    text = (directory / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "alerts.yaml").symlink_to(ROOT / "conf" / "prometheus" / "alerts.yaml")
    check("promtool", "check", "config", tmp_path / "prometheus.yml")
    targets = [
        target
        for job in yaml.safe_load(text)["scrape_configs"]
        for one in job["static_configs"]
        for target in one["targets"]
    ]
    assert {target.partition(":")[0] for target in targets} <= SERVICES[directory].keys()
