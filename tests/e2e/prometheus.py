"""A real Prometheus that scrapes a pair, queried as Grafana and Alertmanager do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.node_under_test import free_port
from tests.e2e.pair import Pair
from tests.programs import found
from tests.waiting import wait_until

RULES = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yaml"
PATIENCE = 60


@dataclass(frozen=True)
class Series:
    """The newest value of one series in the result of a query."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A Prometheus that has loaded the alerts of the project."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def query(self, query: str) -> list[Series]:
        """Return the result of an instant query, whose type must be an instant vector."""
        data = self._get("query", query=query)
        return [Series(one["metric"], float(one["value"][1])) for one in data["result"]]

    def samples(self, selector: str) -> list[tuple[dict[str, str], float, str]]:
        """Return labels, time and value of each stored sample of the last hour. A value is the text
        of a number."""
        data = self._get("query", query=f"{selector}[1h]")
        return [(one["metric"], at, value) for one in data["result"] for at, value in one["values"]]

    def values(self, query: str) -> dict[str, float]:
        """Return the values by node, or by instance for a series without a node."""
        series = self.query(query)
        return {one.labels.get("node") or one.labels["instance"]: one.value for one in series}

    def label_values(self, metric: str, label: str) -> list[str]:
        """Return the values of ``label`` in the series of ``metric``."""
        answer = self._http.get(f"/api/v1/label/{label}/values", params={"match[]": metric})
        found: list[str] = answer.raise_for_status().json()["data"]
        return found

    def firing(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.firing_alerts()}

    def firing_alerts(self) -> list[dict[str, Any]]:
        """Return the firing alerts, with the labels and annotations that Alertmanager gets."""
        return [one for one in self._get("alerts")["alerts"] if one["state"] == "firing"]

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        answer = self._http.get(f"/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", answer
        data: dict[str, Any] = answer["data"]
        return data


@contextmanager
def scraping(
    pair: Pair, home: Path, rules: str, observers: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """Run Prometheus with ``rules``, and scrape the pair and the URLs ``observers`` twice a
    second."""
    home.mkdir()
    (home / "alerts.yaml").write_text(rules)
    jobs = [
        {
            "job_name": name,
            "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}],
        }
        for name, urls in (("ha-engine", pair.urls), ("ha-engine-observers", observers))
    ]
    with running_prometheus(home, rule_files=["alerts.yaml"], scrape_configs=jobs) as prometheus:
        yield prometheus


@contextmanager
def running_prometheus(home: Path, **config: Any) -> Iterator[Prometheus]:
    """Run Prometheus in the directory ``home``. It scrapes the jobs of ``config``, and itself as
    the job ``itself`` if there is none, twice a second."""
    listen = f"127.0.0.1:{free_port()}"
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    itself = {"job_name": "itself", "static_configs": [{"targets": [listen]}]}
    whole = {"global": often, "scrape_configs": [itself], **config}
    (home / "prometheus.yml").write_text(yaml.safe_dump(whole))
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
