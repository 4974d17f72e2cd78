"""Which applications may run as a shadow, and the files of a shadow in the data directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.config.tree import EventSyncConfig
from ha_engine.core import inputs as on
from ha_engine.core.shadow import BEHIND_MAX
from ha_engine.deploy import (
    Archive,
    DeployedApplications,
    application_of,
    composed,
    pack,
    parts_of,
    unpacked,
)
from ha_engine.errors import DeploymentRefused
from ha_engine.node.shadowing import changed_query, require_promotable, require_same_modules
from ha_engine.query.application import load_application
from ha_engine.sync import Report
from ha_engine.sync.report import QueryReport
from ha_engine.types import Deployed, Mark, Shadow
from tests.core.world import World

LIVE = """
name: copies
streams:
  events:
    schema: {id: int not null, text: string}
queries:
  copies:
    sql: SELECT id FROM events
    sinks: [{name: out, type: stdout}]
  others:
    sql: SELECT text FROM events
    sinks: [{name: out, type: stdout}]
"""
CHANGED = LIVE.replace("SELECT id", "SELECT id + 1 AS id")
FUNCTION = """
name: copies
streams:
  events:
    schema: {id: int not null, text: string}
queries:
  copies: {function: "rules:select"}
"""


def archive_of(directory: Path, text: str, **modules: str) -> Archive:
    directory.mkdir()
    (directory / "application.yaml").write_text(text)
    for name, content in modules.items():
        (directory / f"{name}.py").write_text(content)
    return pack(directory)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "live.yaml").write_text(LIVE)
    settings = {
        "application": str(tmp_path / "live.yaml"),
        "node": {"id": "node-a", "data_dir": str(tmp_path / "node-a")},
        "database": {"url": "postgresql://nowhere"},
    }
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path, {})


def changed(config: Config, text: str) -> str:
    path = config.application.with_name("wanted.yaml")
    path.write_text(text)
    return changed_query(config, load_application(config.application), load_application(path))


def test_one_changed_query_may_run_in_shadow(config: Config) -> None:
    assert changed(config, CHANGED) == "copies"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LIVE, "changes none"),
        (CHANGED.replace("SELECT text", "SELECT id"), "changes copies, others"),
        (CHANGED.replace("text: string", "text: int"), "streams and sources"),
        (CHANGED.replace("  others:", "  another:"), "the queries of the application: another"),
        (CHANGED.replace("name: out", "name: table", 1), "the sinks, standby"),
        (CHANGED.replace("    sql", "    standby: warm\n    sql", 1), "the sinks, standby"),
    ],
)
def test_other_changes_need_a_usual_deployment(config: Config, text: str, reason: str) -> None:
    with pytest.raises(DeploymentRefused, match=reason):
        changed(config, text)


def test_query_that_only_the_active_runs_has_no_shadow(config: Config) -> None:
    warm = "    standby: warm\n    sql: SELECT id"
    config.application.write_text(LIVE.replace("    sql: SELECT id", warm))
    with pytest.raises(DeploymentRefused, match="has standby: warm"):
        changed(config, CHANGED.replace("    sql: SELECT id", warm))


@pytest.mark.parametrize(
    ("module", "refused"), [("rules", False), ("helper", True), ("added", True)]
)
def test_only_the_module_of_the_changed_query_may_differ(
    tmp_path: Path, module: str, refused: bool
) -> None:
    files = {"rules": "def select(streams):\n    return streams['events']\n", "helper": "A = 1\n"}
    live = archive_of(tmp_path / "live", FUNCTION, **files)
    wanted = archive_of(tmp_path / "wanted", FUNCTION, **{**files, module: "# changed\n"})
    if module == "rules":
        wanted = archive_of(tmp_path / "rules", FUNCTION, **{**files, "rules": files["rules"] * 2})
    with unpacked(wanted) as application:
        if refused:
            with pytest.raises(DeploymentRefused, match=rf"{module}\.py differs from the live"):
                require_same_modules(live, wanted, application, "copies")
        else:
            require_same_modules(live, wanted, application, "copies")


def test_module_of_a_changed_query_is_below_its_application(tmp_path: Path, config: Config) -> None:
    files = {"rules": "def select(streams):\n    return streams['events']\n"}
    other = LIVE.replace("name: copies", "name: others").replace("events", "orders")
    other = other.replace("  copies:", "  more:").replace("  others:", "  most:")
    parts = {
        "copies": parts_of(archive_of(tmp_path / "function", FUNCTION, **files))["copies"],
        "others": parts_of(archive_of(tmp_path / "sql", other))["others"],
    }
    sent = archive_of(tmp_path / "sent", FUNCTION, rules=files["rules"] * 2)
    live, wanted = composed(parts), composed({**parts, **parts_of(sent)})
    with unpacked(live) as running, unpacked(wanted) as application:
        assert changed_query(config, running, application) == "copies"
        require_same_modules(live, wanted, application, "copies")
        with pytest.raises(DeploymentRefused, match=r"applications/copies/rules\.py differs"):
            require_same_modules(live, wanted, application, "more")


def report(state: str, batch: int) -> Report:
    shadow = QueryReport("delays~1", state, 9, batch, 0)
    empty = Report("passive", "", 1, "", "j", 0, 0, 0, False, True, True, True, True)
    return replace(empty, shadow=shadow)


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({}, "node-b does not run shadow delays~1 now"),
        ({"node-b": report("failed", 9)}, "delays~1 is failed on node-b"),
        ({"node-b": report("running", 9 - BEHIND_MAX - 1)}, "at batch 4 of 9"),
        ({"node-b": report("running", 9 - BEHIND_MAX)}, None),
    ],
)
def test_promotion_needs_the_shadow_on_each_regular_node(
    tmp_path: Path, theirs: dict[str, Report], reason: str | None
) -> None:
    peers = dict.fromkeys(("node-b", "node-c"), "127.0.0.1:1")
    sync = EventSyncConfig.model_construct(peers=peers, backup="node-c")
    config = Config.model_construct(event_sync=sync)
    world = World()
    world.start()
    beside = ("delays", "v2", "v2")
    world.feed(on.DeployAsked("v1", "flights", "alice", 1, "v1", shadow=beside))
    world.settle()
    world.start()
    world.core.deployment.versions.deployed = world.deployed
    world.core.deployment.shadow.life.started(0)
    if reason is None:
        require_promotable(world.core, config, "delays", theirs)
        return
    with pytest.raises(DeploymentRefused, match=reason):
        require_promotable(world.core, config, "delays", theirs)


def test_next_process_runs_the_live_application_and_the_shadow(
    tmp_path: Path, config: Config
) -> None:
    live, beside = archive_of(tmp_path / "a", LIVE), archive_of(tmp_path / "b", CHANGED)
    shadow = Shadow("copies", 3, Mark("copies", 7, 20), beside.id, beside.text)
    begun = Deployed(3, live.id, "copies", "alice", 1, live.text, "keep", shadow)
    store = DeployedApplications(config.node.data_dir)
    store.keep(begun)
    application = application_of(config)
    assert application.archive == begun.runs != live.id
    assert application.shadow is not None
    assert application.shadow.record == replace(shadow, archive="")
    digests = {
        one.queries["copies"].digest for one in (application, application.shadow.application)
    }
    assert len(digests) == 2
    assert "archive" not in str(store.history())

    promoted = replace(shadow, id="", archive="")
    store.keep(Deployed(4, beside.id, "copies", "alice", 2, beside.text, None, None, promoted))
    application = application_of(config)
    assert (application.archive, application.shadow) == (beside.id, None)
    assert application.queries["copies"].digest in digests


def test_deployment_whose_shadow_is_damaged_does_not_count(tmp_path: Path, config: Config) -> None:
    live, beside = archive_of(tmp_path / "a", LIVE), archive_of(tmp_path / "b", CHANGED)
    shadow = Shadow("copies", 1, Mark("copies", 0, 0), beside.id, beside.text)
    DeployedApplications(config.node.data_dir).keep(
        Deployed(1, live.id, "copies", "alice", 1, live.text, None, shadow)
    )
    (path,) = config.node.data_dir.glob("applications/*/shadow/application.yaml")
    path.write_text(LIVE)
    assert application_of(config).archive is None
