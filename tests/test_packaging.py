"""Wheel and source distribution are complete, and the installed wheel works."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ha_engine import __version__
from ha_engine.jvm import JAR
from ha_engine.jvm.build import build as build_jar
from tests.packaged import ROOT, build, install, only, run
from tests.programs import found, needs

SAMPLES = "conf/applications"


def tracked(*below: str) -> set[str]:
    """Return files of the source tree, new ones too; all with an empty ``below``."""
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", *below, cwd=ROOT
    ).splitlines()
    return {name for name in listed if (ROOT / name).exists()}


def built_jar() -> set[str]:
    return {str(JAR.relative_to(ROOT))} if JAR.exists() else set()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions, with the jar if there is a JDK, and return their directory."""
    if found("javac"):
        build_jar(JAR)
    directory = tmp_path_factory.mktemp("dist")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return only(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and return its bin directory."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment")


def test_wheel_has_exactly_the_package_and_the_samples(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = f"ha_engine-{__version__}.dist-info"
    meta = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    samples = {name.replace("conf/applications", "ha_engine/samples") for name in tracked(SAMPLES)}
    wanted = tracked("ha_engine") | built_jar() | samples
    assert names == wanted | {f"{about}/{name}" for name in meta}
    assert {"ha_engine/py.typed", "ha_engine/query/log4j2.properties"} < names
    assert any(name.startswith("ha_engine/postgres/migrations/versions/") for name in names)


def test_source_distribution_equals_the_source_tree(built: Path) -> None:
    with tarfile.open(only(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == tracked() | built_jar() | {"PKG-INFO"}


@needs("javac")
def test_wheel_has_the_jar_of_the_present_sources(wheel: Path, tmp_path: Path) -> None:
    build_jar(tmp_path / "fresh.jar")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(str(JAR.relative_to(ROOT))) == (tmp_path / "fresh.jar").read_bytes()


def test_wheel_from_the_source_distribution_is_equal(
    built: Path, wheel: Path, tmp_path: Path
) -> None:
    # Python 3.11.2 of Debian 12 cannot extract with a filter.
    run("tar", "-xzf", only(built.glob("*.tar.gz")), cwd=tmp_path)
    unpacked = only(tmp_path.iterdir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=unpacked)
    assert only(tmp_path.glob("*.whl")).read_bytes() == wheel.read_bytes()


def test_metadata_of_the_wheel_is_correct(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = Parser().parsestr(
            archive.read(f"ha_engine-{__version__}.dist-info/METADATA").decode()
        )
    assert about["Version"] == __version__
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about.get_all("Provides-Extra", [])) == {
        "demo",
        "dev",
        "docs",
        "embedded",
        "mqtt",
        "kafka",
        "nats",
        "rabbitmq",
        "redis",
        "s3",
    }


def test_version_is_in_one_place(wheel: Path) -> None:
    """The exceptions are the name of the wheel in the documents, which must be that of the built
    one, and the Helm chart, whose version another test compares."""
    literal = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    found = {
        name
        for name in tracked("ha_engine", "pyproject.toml", "conf", "compose", "docs")
        if literal.search((ROOT / name).read_text(errors="replace").replace(wheel.name, ""))
    }
    assert found == {"ha_engine/__init__.py", "conf/helm/ha-engine/Chart.yaml"}


def test_installed_command_is_that_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "ha-engine", "--version", cwd=tmp_path) == f"ha-engine {__version__}\n"
    where = "import ha_engine; print(ha_engine.__file__)"
    assert run(installed / "python", "-c", where, cwd=tmp_path).startswith(str(installed.parent))


def test_installed_wheel_creates_the_tables_of_the_database(
    installed: Path, database_url: str, tmp_path: Path
) -> None:
    said = run(installed / "ha-engine", "db", "init", "--url", database_url, cwd=tmp_path)
    assert said.startswith("created schema ha_engine ")


@pytest.mark.spark
@pytest.mark.slow
def test_installed_wheel_checks_an_included_sample(installed: Path, tmp_path: Path) -> None:
    sample = only(installed.parent.glob("lib/python*/site-packages/ha_engine/samples/flights.yaml"))
    said = run(installed / "ha-engine", "app", "check", sample, cwd=tmp_path)
    assert said.splitlines()[-1].startswith("all can run; ")


def test_every_supported_python_finds_its_packages_in_the_constraints() -> None:
    """A package may need another one on some releases of Python, which made no constraints."""
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split()}
    missing = {
        f"{distribution.name} needs {need} on Python {python}"
        for distribution in distributions()
        for need in map(Requirement, distribution.requires or [])
        for python in ("3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0")
        if _is_needed(need, python) and canonicalize_name(need.name) not in pinned
        if canonicalize_name(distribution.name) in pinned
    }
    assert not missing


def _is_needed(need: Requirement, python: str) -> bool:
    release = python.rpartition(".")[0]
    environment = {"python_full_version": python, "python_version": release, "extra": ""}
    return need.marker is not None and need.marker.evaluate(environment)
