"""A real Prometheus scrapes two nodes, and the alerts of the project fire on a kill."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.node_under_test import free_port
from tests.e2e.pair import Pair, running_pair
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.programs import found, needs
from tests.waiting import wait_until

pytestmark = [needs("prometheus"), pytest.mark.slow]

RULES = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yaml"
PATIENCE = 60


class Prometheus:
    """A Prometheus, queried through the interface that Grafana and Alertmanager use."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def values(self, query: str) -> dict[str, float]:
        """Return the values by node, or by instance for a series without a node."""
        answer = self._http.get("/api/v1/query", params={"query": query}).json()
        series = [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]
        return {labels.get("node") or labels["instance"]: value for labels, value in series}

    def firing(self) -> set[str]:
        alerts: list[dict[str, Any]] = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@contextmanager
def scraping(pair: Pair, home: Path) -> Iterator[Prometheus]:
    """Run Prometheus with shortened waits of the alerts, since minutes are too long for a test."""
    home.mkdir()
    (home / "alerts.yaml").write_text(re.sub(r"for: \w+", "for: 1s", RULES.read_text()))
    targets = [url.removeprefix("http://") for url in pair.urls]
    job = {"job_name": "ha-engine", "static_configs": [{"targets": targets}]}
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {"global": often, "rule_files": ["alerts.yaml"], "scrape_configs": [job]}
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    listen = f"127.0.0.1:{free_port()}"
    program = found("prometheus")
    assert program, "apt-get install prometheus"
    command = [
        program,
        "--config.file=prometheus.yml",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address={listen}",
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://{listen}")
        wait_until(prometheus.is_ready, within=PATIENCE)
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)


def test_the_alerts_fire_when_the_active_is_killed(module_database: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, APPLICATION, module_database, NodeWithoutSpark, **ROOM)
    with running_pair(pair), scraping(pair, tmp_path / "prometheus") as prometheus:
        wait_until(pair.is_protected, within=PATIENCE)
        active = pair.active()
        assert active is not None
        wait_until(
            lambda: prometheus.values("ha_engine_role") == roles(pair, active.name), within=PATIENCE
        )
        wait_until(
            lambda: not prometheus.firing() & {"HaEngineNotProtected", "HaEngineNoActive"},
            within=PATIENCE,
        )
        active.kill_everything()
        other = pair.other(active)
        wait_until(
            lambda: {"HaEngineNodeDown", "HaEngineNotProtected"} <= prometheus.firing(),
            within=PATIENCE,
        )
        wait_until(lambda: prometheus.values("ha_engine_role") == {other.name: 4}, within=PATIENCE)
        wait_until(lambda: "HaEngineNoActive" not in prometheus.firing(), within=PATIENCE)


def roles(pair: Pair, active: str) -> dict[str, float]:
    return {name: 4 if name == active else 2 for name in pair.nodes}
