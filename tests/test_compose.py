"""The containers' files, as far as a test can check them without running containers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.config.load import load_config

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("name", ["node-a", "node-b"])
def test_the_config_of_each_node_is_valid_and_names_the_other(name: str) -> None:
    config = load_config(COMPOSE / "ha-engine.yaml", SERVICES[name]["environment"])
    (peer,) = config.event_sync.peers
    assert (config.node.id, {name, peer}) == (name, {"node-a", "node-b"})
    address = SERVICES[name]["networks"]["default"]["ipv4_address"]
    balancer = SERVICES["haproxy"]["environment"]
    assert f"{address}:8080" in balancer.values()


def test_the_config_of_the_database_job_is_valid() -> None:
    load_config(COMPOSE / "ha-engine.yaml", SERVICES["db-init"]["environment"])


def test_each_service_whose_health_another_awaits_has_a_check() -> None:
    awaited = {
        name
        for service in SERVICES.values()
        for name, wanted in service.get("depends_on", {}).items()
        if wanted["condition"] == "service_healthy"
    }
    assert awaited == {"postgres", "node-a"}
    assert all(SERVICES[name]["healthcheck"]["test"] for name in awaited)


def test_every_port_is_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_image_has_the_tag_of_a_release() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    images = {service["image"] for service in SERVICES.values()} - {"ha-engine"}
    images.update(re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE))
    tags = [image.rpartition(":")[2] for image in images]
    assert len(tags) > 4
    assert [tag for tag in tags if not re.match(r"v?\d|bookworm", tag)] == []
    installs = re.findall(r"pip install (.*)", dockerfile)
    assert len(installs) == 2
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs)


def test_every_mounted_file_exists() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    mounted = [volume.split(":")[0] for volume in volumes if volume.startswith(".")]
    assert mounted
    assert [name for name in mounted if not (COMPOSE / name).exists()] == []


def test_the_dashboard_shows_metrics_that_a_node_exposes() -> None:
    board = (COMPOSE / "grafana" / "dashboards" / "ha-engine.json").read_text()
    assert json.loads(board)["panels"]
    shown = {name.removesuffix("_bucket") for name in re.findall(r"ha_engine_\w+", board)}
    documented = set(re.findall(r"`(ha_engine_\w+)`", (ROOT / "docs" / "METRICS.md").read_text()))
    assert shown - {"ha_engine"} <= documented
