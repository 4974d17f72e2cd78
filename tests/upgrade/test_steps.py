"""``ha-engine upgrade prepare`` and ``verify``, while the answers of a node change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ha_engine.api.http import NodeView, application
from ha_engine.auth import OPEN
from ha_engine.cli.root import program
from ha_engine.errors import NotReady
from tests.client.serving import serving

REJOIN = {"stage": "journal", "records": 7, "batches": 2, "bytes": 0}


class Group:
    """The answers of node-a, whose peer is node-b. ``to_wait`` is the number of answers in which
    node-b is not ready. ``backup`` is the role of node-c, the backup, or None if there is none."""

    def __init__(self, active: str = "node-a", to_wait: int = 0) -> None:
        self.active: str | None = active
        self.to_wait, self.url, self.switched = to_wait, "", 0
        self.refused: str | None = None
        self.backup: str | None = None

    def cluster(self) -> dict[str, Any]:
        self.to_wait -= 1
        behind = self.to_wait >= 0
        nodes = {
            name: self._node(name, behind and name == "node-b") for name in ("node-a", "node-b")
        }
        nodes["node-b"]["refused"] = self.refused
        if self.backup is not None:
            listed = self.backup == "passive"
            node_c = {"role": self.backup, "in_sync": listed, "warm": listed}
            nodes["node-c"] = self._node("node-c", behind=False) | node_c
        backup = self.backup and "node-c"
        return {"node": "node-a", "active": self.active, "backup": backup, "nodes": nodes}

    def _node(self, name: str, behind: bool) -> dict[str, Any]:
        return {
            "answers": True,
            "url": self.url,
            "role": "active" if name == self.active else "passive",
            "reason": "",
            "suspended": False,
            "in_sync": not behind,
            "warm": not behind,
            "refused": None,
            "rejoin": REJOIN if behind else None,
        }

    def status(self) -> dict[str, Any]:
        role = "active" if self.active == "node-a" else "passive"
        return {
            "role": role,
            "version": "1.0.0",
            "active": None,
            "handover_to": "node-b",
            "lease": {"holder": self.active},
        }

    def switch_over(self, to: str | None, by: str) -> str:
        self.switched += 1
        self.active = "node-b"
        return ""


@contextmanager
def served(group: Group) -> Iterator[str]:
    view = NodeView(
        status=group.status,
        cluster=group.cluster,
        exposition=lambda: b"",
        skip=lambda query, by: "",
        retry=lambda query: "",
        rescale=lambda query, partitions: "",
        alive=lambda: True,
        switchover=group.switch_over,
    )
    with serving(application(view, [], OPEN)) as url:
        group.url = url
        yield url


def upgrade(group: Group, *words: str) -> Result:
    with served(group) as url:
        given = ["upgrade", *words, "--url", url]
        return CliRunner().invoke(program("upgrade"), given, catch_exceptions=False)


def test_prepare_switches_over_from_an_active_once_the_other_node_is_ready() -> None:
    group = Group(to_wait=4)
    done = upgrade(group, "prepare", "--json")
    assert (done.exit_code, group.switched, group.active) == (0, 1, "node-b")
    step = json.loads(done.stdout)
    assert [(node["node"], node["role"]) for node in step["nodes"]] == [
        ("node-a", "passive"),
        ("node-b", "active"),
    ]
    assert "node-b is at stage 'journal', and still needs 7 records, 2 batches" in done.stderr
    assert "stop node-a" in step["next"]


def test_prepare_changes_nothing_on_a_passive() -> None:
    group = Group(active="node-b")
    done = upgrade(group, "prepare")
    assert (done.exit_code, group.switched) == (0, 0)
    assert "node-a: ha-engine 1.0.0, passive, in sync, warm" in done.stdout


def test_prepare_gives_up_while_no_other_node_is_ready() -> None:
    group = Group(to_wait=1000)
    with pytest.raises(NotReady, match=r"after 0\.3 s: node-b is at stage 'journal'"):
        upgrade(group, "prepare", "--wait", "0.3")
    assert group.switched == 0


def test_verify_waits_until_both_nodes_are_whole_and_names_the_next_step() -> None:
    done = upgrade(Group(to_wait=3), "verify")
    assert done.exit_code == 0
    assert "next: all nodes run one version" in done.stdout


def test_verify_does_not_wait_until_the_backup_is_in_sync() -> None:
    group = Group(to_wait=3)
    group.backup = "backup"
    done = upgrade(group, "verify")
    assert "node-c: ha-engine 1.0.0, backup, not in sync, not warm" in done.stdout
    assert "next: all nodes run one version" in done.stdout


def test_prepare_waits_for_another_node_than_the_backup() -> None:
    """A switchover never chooses the backup (RULES.md#r37)."""
    group = Group(to_wait=1000)
    group.backup = "passive"
    with pytest.raises(NotReady, match=r"after 0\.3 s: node-b is at stage"):
        upgrade(group, "prepare", "--wait", "0.3")
    assert group.switched == 0


def test_verify_says_why_two_nodes_refuse_each_other() -> None:
    group = Group()
    group.refused = "node-b has spark 4.4.0, but this node has spark 4.3.0"
    with pytest.raises(NotReady, match="refuses node-b: node-b has spark"):
        upgrade(group, "verify", "--wait", "0.3")


def test_verify_waits_for_a_node_that_does_not_answer_yet() -> None:
    with pytest.raises(NotReady, match=r"after 0\.3 s"):
        CliRunner().invoke(
            program("upgrade"),
            ["upgrade", "verify", "--wait", "0.3", "--url", "http://127.0.0.1:1"],
            catch_exceptions=False,
        )
