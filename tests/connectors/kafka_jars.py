"""The programs of a Kafka broker for tests: jars from a Maven repository, kept in a cache.

``make kafka`` fetches what is missing. The variable MAVEN_REPOSITORY names another repository, and
HA_ENGINE_TEST_CACHE another directory. A jar is used only if its digest is the pinned one, so it
does not matter from where it comes. The list has only what a broker loads. To change the version,
list the dependencies of org.apache.kafka:kafka_2.13 with Maven, and pin them here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo.maven.apache.org/maven2")
_CACHE = Path(os.environ.get("HA_ENGINE_TEST_CACHE", "~/.cache/ha-engine-tests")).expanduser()
BROKER = Path(__file__).parent / "kafka_jars.txt"
"""The pinned jars of a broker."""
SPARK = Path(__file__).parents[2] / "benchmarks" / "spark_kafka_jars.txt"
"""The pinned jars of Spark's Kafka connector, and of what it needs."""
_FIRST_METADATA = "bootstrap.checkpoint"
_SECONDS = 120


def _jars(pins: Path) -> dict[str, tuple[Path, str]]:
    """The file and the digest of each jar, by its path in a repository."""
    found = dict[str, tuple[Path, str]]()
    for line in pins.read_text().splitlines():
        name, digest = line.split()
        group, artifact, version = name.split(":")
        jar = f"{artifact}-{version}.jar"
        path = f"{group.replace('.', '/')}/{artifact}/{version}/{jar}"
        found[path] = (_CACHE / "kafka" / digest[:12] / jar, digest)
    return found


def paths(pins: Path = BROKER) -> list[Path]:
    return [file for file, _ in _jars(pins).values()]


def classpath(pins: Path = BROKER) -> str:
    """The jars, for Java."""
    return ":".join(map(str, paths(pins)))


def spark_jars(pins: Path = SPARK) -> str:
    """The jars, as ``spark.jars`` names them."""
    return ",".join(map(str, paths(pins)))


def first_metadata() -> Path:
    """The file with the first metadata of a cluster, for the first start of its brokers."""
    digest = hashlib.sha256(BROKER.read_bytes()).hexdigest()[:12]
    return _CACHE / "kafka" / digest / _FIRST_METADATA


def needs_kafka() -> pytest.MarkDecorator:
    """Skip a test if the jars are missing, unless no test may be skipped."""
    missing = not first_metadata().exists() and os.environ.get("TEST_PROGRAMS") != "all"
    return pytest.mark.skipif(missing, reason="needs the jars of Kafka; make kafka")


def fetch(pins: Path = BROKER) -> None:
    """Fetch the jars that are missing."""
    for path, (file, digest) in _jars(pins).items():
        if not file.exists():
            _fetch(f"{REPOSITORY.rstrip('/')}/{path}", file, digest)


def _fetch(url: str, file: Path, digest: str) -> None:
    if not url.startswith("https://"):
        sys.exit("MAVEN_REPOSITORY must begin with https://")
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        sys.exit(f"{url} has another digest than the pinned one; it is not used")
    _put(file, content)


def _make_first_metadata() -> None:
    with tempfile.TemporaryDirectory() as home:
        config = Path(home) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\nlog.dirs="
            f"{home}/data\ncontroller.quorum.voters=1@127.0.0.1:1\n"
            "controller.listener.names=CONTROLLER\n"
            "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\n"
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(config)]
        subprocess.run(
            ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", classpath(), *format_storage],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        _put(first_metadata(), (Path(home) / "data" / _FIRST_METADATA).read_bytes())


def _put(file: Path, content: bytes) -> None:
    """Create ``file`` whole, even if other processes do the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(file)


if __name__ == "__main__":
    fetch()
    if not first_metadata().exists():
        _make_first_metadata()
