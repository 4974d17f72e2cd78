"""Let Helm render the chart with the values of each case.

    python -m tests.kubernetes.render

This command writes the manifests beside this file, where tests without Helm read them. Each begins
with the digest of what it was rendered from.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.programs import VERSIONS, fetch, program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "conf" / "helm" / "ha-engine"
RELEASE, NAMESPACE = "pair", "streams"
_ACCESS = {"admin": {"alice": "5b" * 32}, "ingest": {"sensors": "0f" * 32}}
_PAIR = {"database": {"secretName": "pair-database"}}
CASES: dict[str, tuple[Path, dict[str, Any]]] = {
    "plain": (
        ROOT / "conf" / "applications" / "flights.yaml",
        {**_PAIR, "tls": {"insecure": True}, "config": {"query": {"heap": "2GiB"}}},
    ),
    "cluster": (
        ROOT / "compose" / "cluster" / "flights.yaml",
        {
            **_PAIR,
            "tls": {"secretName": "pair-tls"},
            "hostNames": ["events.example.com"],
            "config": {"access": _ACCESS},
            "receivers": {"replicas": 2, "config": {"access": _ACCESS}},
            "spark": {
                "enabled": True,
                "secretName": "pair-spark",
                "checkpointClaim": "pair-checkpoint",
                "masters": 2,
                "zookeeper": "zookeeper:2181",
            },
        },
    ),
    "executors": (
        ROOT / "conf" / "applications" / "flights.yaml",
        {
            **_PAIR,
            "tls": {"secretName": "pair-tls"},
            "hostNames": ["events.example.com"],
            "config": {"access": _ACCESS},
            "spark": {
                "enabled": True,
                "manager": "kubernetes",
                "secretName": "pair-spark",
                "checkpointClaim": "pair-checkpoint",
                "executorEnv": [{"name": "REGION", "value": "eu"}],
                "executorAnnotations": {"example.com/team": "streams"},
                "executorNodeSelector": {"example.com/pool": "spark"},
                "executorTolerations": [{"key": "example.com/spark", "operator": "Exists"}],
            },
        },
    ),
}
"""The application and the values of each case, by its name."""


def file_of(case: str) -> Path:
    return HERE / f"{case}.yaml"


def heading(case: str) -> str:
    """The first line of the file of a case, which changes with the chart, the application and the
    values."""
    application, values = CASES[case]
    digest = hashlib.sha256(yaml.safe_dump(values).encode())
    templates = sorted((CHART / "templates").iterdir())
    for path in (CHART / "Chart.yaml", CHART / "values.yaml", *templates, application):
        digest.update(path.read_bytes())
    return (
        f"# 'python -m tests.kubernetes.render' wrote this file from {digest.hexdigest()[:16]}.\n"
    )


def render(case: str, **more: Any) -> str:
    """The manifests of a case, with ``more`` values. Raises CalledProcessError."""
    application, values = CASES[case]
    return helm("template", {**values, "application": {"application.yaml": application}, **more})


def helm(command: str, values: dict[str, Any]) -> str:
    """What ``helm COMMAND`` prints about the chart. A path among the values stands for its text."""
    texts = {name: path.read_text() for name, path in values.get("application", {}).items()}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**values, "application": texts}, file)
        file.flush()
        version = f"--kube-version={VERSIONS[-1]}"
        words = [str(program("helm")), command, f"--values={file.name}", f"--namespace={NAMESPACE}"]
        named = [RELEASE, str(CHART)] if command == "template" else [str(CHART)]
        done = subprocess.run([*words, version, *named], capture_output=True, text=True, check=True)
    return done.stdout


def balancer_config(case: str) -> str:
    """The config of HAProxy in the rendered manifests."""
    (found,) = (
        one["data"]["haproxy.cfg"]
        for one in yaml.safe_load_all(file_of(case).read_text())
        if one and "haproxy.cfg" in one.get("data", {})
    )
    return str(found)


if __name__ == "__main__":
    fetch()
    for name in CASES:
        file_of(name).write_text(heading(name) + render(name))
