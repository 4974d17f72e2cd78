"""A user's path through compose/README.md with Docker: containers are killed under load.

    python -m tests.containers pair
    python -m tests.containers cluster --without grafana

The script builds the image, starts the containers and sends the demo's flights. Meanwhile it kills
one container of each kind and starts it again. At the end the sink must have counted each flight
once. The script needs Docker with the compose plugin, and ports of this machine that are free, so
it is no part of the tests. It removes its containers and volumes, unless a step failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml

from tests.waiting import wait_until

COMPOSE = Path(__file__).parents[2] / "compose"
FLIGHTS = 336_776
PATIENCE = 1800.0
"""The limit of each wait in seconds, for a host that other work keeps busy."""
PORTS = {"node-a": 8081, "node-b": 8082, "prometheus": 9090}
MASTERS = {"master-1": 8091, "master-2": 8092}


class Which(StrEnum):
    PAIR = "pair"
    CLUSTER = "cluster"


FILES = {
    Which.PAIR: COMPOSE / "compose.yaml",
    Which.CLUSTER: COMPOSE / "cluster" / "compose.yaml",
}
COUNTED = "SELECT coalesce(sum(departed + cancelled), 0) FROM delays"


class Project:
    """The containers of one compose file, without the services ``left_out``."""

    def __init__(self, file: Path, override: Path, left_out: Sequence[str]) -> None:
        self._command = [
            "docker",
            "compose",
            "--progress",
            "quiet",
            "--project-name",
            "ha-engine-test",
        ]
        self._command += ["--file", str(file), "--file", str(override)]
        services = yaml.safe_load(file.read_text())["services"]
        self.services = [name for name in services if name not in left_out]

    def run(self, *words: str) -> str:
        """Run a command of compose and return its output."""
        done = subprocess.run([*self._command, *words], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"docker compose {' '.join(words)} failed with {done.returncode}")
        return done.stdout

    def start(self, *services: str) -> None:
        self.run("up", "--detach", *services)

    def counted(self) -> int:
        """Return the number of flights that the sink has counted."""
        psql = ["exec", "-T", "postgres", "psql", "--username=postgres", "--tuples-only"]
        made = self.run(*psql, "--command", "SELECT to_regclass('delays') IS NOT NULL").strip()
        return int(self.run(*psql, "--command", COUNTED)) if made == "t" else 0

    def has_ended(self, service: str) -> bool:
        """Return whether the container ended without an error."""
        found = self.run("ps", "--all", "--format", "json", service).splitlines()
        states = [json.loads(line) for line in found]
        return [(one["State"], one["ExitCode"]) for one in states] == [("exited", 0)]

    def active(self) -> str:
        """Return the node that is the active."""
        name: str = answer(f"{url('node-a')}/v1/cluster")["active"]
        return name

    def is_whole(self) -> bool:
        """Return whether one node is active, the other one passive, and both are warm."""
        cluster = answer(f"{url('node-a')}/v1/cluster")
        if not cluster or not cluster["protected"]:
            return False
        nodes = cluster["nodes"].values()
        roles = sorted(str(node.get("role")) for node in nodes)
        return roles == ["active", "passive"] and all(node.get("warm") for node in nodes)

    def leader(self) -> str:
        """Return the master of Spark that leads."""
        return next(
            name
            for name, port in MASTERS.items()
            if (found := answer(f"http://127.0.0.1:{port}/json/")) and found["status"] == "ALIVE"
        )

    def scrapes_all(self) -> bool:
        """Return whether Prometheus reaches each of its targets."""
        found = answer(f"{url('prometheus')}/api/v1/targets?state=active")
        targets = found["data"]["activeTargets"] if found else []
        return bool(targets) and all(one["health"] == "up" for one in targets)


def url(service: str) -> str:
    return f"http://127.0.0.1:{PORTS[service]}"


def answer(address: str) -> Any:
    """Return the JSON of an answer, or None if there is none."""
    try:
        return httpx.get(address, timeout=5).raise_for_status().json()
    except httpx.HTTPError:
        return None


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what:<72}{time.monotonic() - began:7.1f} s", flush=True)


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, within=PATIENCE, every=0.5)


def lose(project: Project, service: str) -> None:
    """Kill a container, wait until the sink counts more flights, and start it again."""
    if project.has_ended("producer"):
        sys.exit(f"no flights were left when {service} should be killed; give a lower --rate")
    with timed(f"kill {service}, until the sink counts further flights"):
        project.run("kill", service)
        before = project.counted()
        until(lambda: project.counted() > before)
    with timed(f"start {service}, until the pair is whole and Prometheus sees all"):
        project.start(service)
        until(project.is_whole)
        until(project.scrapes_all)


def main(
    which: Annotated[Which, typer.Argument(help="The compose file.")],
    without: Annotated[list[str] | None, typer.Option(help="A service to leave out.")] = None,
    rate: Annotated[int, typer.Option(help="Flights per second.")] = 500,
    build: Annotated[bool, typer.Option(help="Build the image first.")] = True,
) -> None:
    """Run the containers of one compose file."""
    file = FILES[which]
    with tempfile.TemporaryDirectory() as home:
        words = yaml.safe_load(file.read_text())["services"]["producer"]["command"]
        words = [f"--rate={rate}" if word.startswith("--rate=") else word for word in words]
        override = Path(home) / "override.yaml"
        override.write_text(yaml.safe_dump({"services": {"producer": {"command": words}}}))
        project = Project(file, override, without or [])
        walk(project, build)
        project.run("down", "--volumes")


def walk(project: Project, build: bool) -> None:
    if build:
        with timed("build the image"):
            project.run("build", "--quiet", "node-a")
    with timed("start the containers, until the pair is whole and Prometheus sees all"):
        project.start(*project.services)
        until(project.is_whole)
        until(project.scrapes_all)
    with timed("until the sink has counted flights"):
        until(project.counted)
    for kind in ("kafka-2", "receiver-1", "worker-1"):
        if kind in project.services:
            lose(project, kind)
    if "master-1" in project.services:
        lose(project, project.leader())
    lose(project, project.active())
    with timed("switchover"):
        done = project.run("exec", "-T", "node-a", "ha-engine", "switchover", "--wait", "60")
    print(done, end="")
    with timed("until the producer has ended"):
        until(lambda: project.has_ended("producer"))
    with timed("until the sink has counted each flight"):
        until(lambda: project.counted() >= FLIGHTS)
    assert project.counted() == FLIGHTS
    print(project.run("exec", "-T", "node-a", "ha-engine", "history"), end="")


if __name__ == "__main__":
    typer.run(main)
