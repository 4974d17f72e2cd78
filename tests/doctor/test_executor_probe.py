"""The probe of an executor's host, run on this host: real gRPC and real files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine import __version__
from ha_engine.auth import token_of
from ha_engine.config import Config
from ha_engine.doctor.executor_probe import DRIVER_FILE, digest_of, look, versions
from ha_engine.doctor.range_service import services_of, serving
from tests.doctor.configs import config_in
from tests.e2e.node_under_test import free_port
from tests.sync.authority import Authority

SECRET = "a-secret-of-the-cluster"
GROUP = "the group"


def on_cluster(home: Path, **execution: Any) -> Config:
    given = {
        "master": "spark://127.0.0.1:7077",
        "checkpoint": home,
        "listen": f"127.0.0.1:{free_port()}",
        "secret": SECRET,
        **execution,
    }
    return config_in(home, execution=given)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return on_cluster(tmp_path)


@pytest.fixture
def ca(config: Config) -> Iterator[bytes | None]:
    with serving(config, GROUP) as ca:
        yield ca


def looked(config: Config, **given: Any) -> dict[str, Any]:
    """Return the report on a host that has all that the check wants, but for ``given``."""
    address, directory = config.execution.address, config.node.data_dir / "check"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / DRIVER_FILE).write_text("content")
    wanted = {
        "modules": ["json"],
        "nodes": {address: GROUP},
        "token": token_of(SECRET),
        "ca": None,
        "directory": str(directory),
        "content": "content",
    }
    return look(3, **{**wanted, **given})


@pytest.mark.usefixtures("ca")
def test_a_good_host_has_no_problem(config: Config) -> None:
    found = looked(config)
    assert (found["modules"], found["nodes"], found["directory"]) == ({}, {}, "")
    assert found["versions"] == versions()
    assert found["versions"]["ha-engine"] == __version__
    assert found["interpreter"] == sys.executable
    written = config.node.data_dir / "check" / found["file"]
    assert written.read_text() == "content"


def test_a_node_with_tls_answers_to_its_authority_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("node-a", san="IP:127.0.0.1")
    other = Authority(tmp_path / "other").certificate.read_bytes()
    config = on_cluster(tmp_path, tls=files)
    with serving(config, GROUP) as ca:
        assert looked(config, ca=ca)["nodes"] == {}
        (problem,) = looked(config, ca=other)["nodes"].values()
    assert problem.startswith("UNAVAILABLE, ")


@pytest.mark.usefixtures("ca")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"token": "of another"}, "UNAUTHENTICATED, the token is not that of this node"),
        ({"group": "other"}, "FAILED_PRECONDITION, this node belongs to the group the group"),
    ],
)
def test_a_node_that_refuses_the_executor_says_why(
    config: Config, given: dict[str, str], text: str
) -> None:
    address = config.execution.address
    nodes = {address: given.pop("group", GROUP)}
    assert looked(config, nodes=nodes, **given)["nodes"][address].startswith(text)


def test_an_address_without_a_node_is_a_problem(config: Config) -> None:
    (problem,) = looked(config)["nodes"].values()
    assert problem.startswith("no connection (")


@pytest.mark.usefixtures("ca")
def test_the_check_asks_a_node_that_already_serves(config: Config) -> None:
    with serving(config, "another group"):
        assert looked(config)["nodes"] == {}


def test_a_module_that_is_missing_is_named(config: Config) -> None:
    problem = looked(config, modules=["no_such_module"])["modules"]["no_such_module"]
    assert problem == "ModuleNotFoundError: No module named 'no_such_module'"


def test_a_directory_that_is_not_the_drivers_is_a_problem(config: Config, tmp_path: Path) -> None:
    assert "No such file" in looked(config, directory=str(tmp_path))["directory"]
    assert looked(config, content="of another")["directory"].endswith("has other content")


def test_the_digest_is_of_names_and_content(tmp_path: Path) -> None:
    module, cache = tmp_path / "module.py", tmp_path / "__pycache__" / "module.pyc"
    module.write_text("1")
    first = digest_of(tmp_path)
    cache.parent.mkdir()
    cache.write_text("compiled")
    assert digest_of(tmp_path) == first
    module.write_text("2")
    assert digest_of(tmp_path) != first
    module.write_text("1")
    module.rename(tmp_path / "renamed.py")
    assert digest_of(tmp_path) != first


def test_the_probe_runs_on_a_host_without_the_engine(tmp_path: Path) -> None:
    """Spark sends it by value, as here."""
    from pyspark import cloudpickle

    from ha_engine.doctor import executor_probe

    cloudpickle.register_pickle_by_value(executor_probe)
    pickled = tmp_path / "probe"
    pickled.write_bytes(cloudpickle.dumps(executor_probe.versions))
    hidden = (
        "import pickle, sys; sys.modules['ha_engine'] = None; "
        f"print(pickle.load(open({str(pickled)!r}, 'rb'))()['ha-engine'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, env=os.environ, check=False
    )
    assert (done.stdout, done.stderr) == ("none\n", "")


def test_a_node_without_peers_and_journal_is_asked_alone(config: Config) -> None:
    services = services_of(config)
    assert services.group_id == "unknown"
    assert services.names == {config.execution.address: "this node"}
    assert services.unasked == {}


def test_a_peer_that_does_not_answer_is_not_asked(config: Config) -> None:
    peers = {"node-b": f"127.0.0.1:{free_port()}"}
    sync = config.event_sync.model_copy(update={"peers": peers})
    http = config.http.model_copy(update={"listen": f"127.0.0.1:{free_port()}"})
    services = services_of(config.model_copy(update={"event_sync": sync, "http": http}))
    assert set(services.unasked) == {"node-b"}
