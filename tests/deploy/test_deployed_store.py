"""The deployments in the data directory of a node."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.deploy import Archive, DeployedApplications, application_of, pack
from ha_engine.deploy.store import KEPT
from ha_engine.errors import ApplicationError
from ha_engine.types import Deployed
from tests.deploy.test_deployed_archive import SQL, written


def deployed(number: int, archive: Archive, on_change: str | None = None) -> Deployed:
    return Deployed(number, archive.id, "copies", "alice", 1, archive.text, on_change)


@pytest.fixture
def store(tmp_path: Path) -> DeployedApplications:
    return DeployedApplications(tmp_path / "node-a")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "engine.yaml"
    settings = {
        "application": str(written(tmp_path / "file", SQL)),
        "node": {"id": "node-a", "data_dir": str(tmp_path / "node-a")},
        "database": {"url": "postgresql://nowhere"},
    }
    path.write_text(yaml.safe_dump(settings))
    return load_config(path, {})


def archive_of(directory: Path, comment: str = "") -> Archive:
    return pack(written(directory, f"{SQL}# {comment}\n"))


def test_node_runs_the_deployed_application_until_it_is_given_up(
    tmp_path: Path, store: DeployedApplications, config: Config
) -> None:
    assert application_of(config).archive is None
    archive = archive_of(tmp_path / "new")
    store.keep(deployed(1, archive, "reset"))
    application = application_of(config)
    assert application.archive == archive.id
    assert application.path.is_relative_to(config.node.data_dir)
    assert application.queries["copies"].on_change is not None
    store.keep(None)
    assert application_of(config).archive is None


def test_archives_of_earlier_deployments_stay(tmp_path: Path, store: DeployedApplications) -> None:
    archives = [archive_of(tmp_path / "new", str(n)) for n in range(3)]
    for number, archive in enumerate(archives, 1):
        store.keep(deployed(number, archive))
    assert [one["number"] for one in store.history()] == [3, 2, 1]
    assert "archive" not in store.history()[0]
    assert store.archive(1) == archives[0]
    with pytest.raises(ApplicationError, match="does not have deployment 4"):
        store.archive(4)


def test_same_deployment_is_kept_once(tmp_path: Path, store: DeployedApplications) -> None:
    archive = archive_of(tmp_path / "new")
    for _ in range(2):
        store.keep(deployed(1, archive))
    assert len(store.history()) == 1


def test_only_the_newest_deployments_stay(tmp_path: Path, store: DeployedApplications) -> None:
    archive = archive_of(tmp_path / "new")
    for number in range(1, KEPT + 3):
        store.keep(deployed(number, archive))
    assert [one["number"] for one in store.history()] == list(range(KEPT + 2, 2, -1))


def test_deployment_that_was_not_completely_written_does_not_count(
    tmp_path: Path, store: DeployedApplications, config: Config
) -> None:
    store.keep(deployed(1, archive_of(tmp_path / "new")))
    current = config.node.data_dir / "applications" / "current.json"
    current.write_text(current.read_text()[:5])
    assert application_of(config).archive is None
    store.keep(deployed(1, archive_of(tmp_path / "new")))
    assert application_of(config).archive is not None
