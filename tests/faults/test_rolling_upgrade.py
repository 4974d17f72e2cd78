"""A pair goes from one release to another and back, host by host, while the active is killed.

The two releases are copies of this source that differ in one thing, or in all of them. A process
without Spark computes the batches from the journal (``matrix/stand_in.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.e2e.databases import rows
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import Pair, running_pair, stored_events
from tests.e2e.without_spark import APPLICATION, no_spark
from tests.releases import (
    SEMANTICS,
    WIRE,
    Change,
    contracting,
    release,
    run,
    version,
)
from tests.waiting import wait_ended, wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
PAUSE_SECONDS = 0.02
BOTH_VERSIONS = (*WIRE, "PROTOCOL_MIN, PROTOCOL_MAX = 1, 2")
SPARK = ("query/runtime.py", "**versions}", '**versions, "spark": "4.4.0"}')
ADDS = {"0005_color": "ALTER TABLE ha_engine.lease ADD COLUMN color text NOT NULL DEFAULT 'red'"}
REMOVES = {"0006_no_color": "ALTER TABLE ha_engine.lease DROP COLUMN color"}
Difference = tuple[list[Change], dict[str, str]]
EVERYTHING: Difference = ([BOTH_VERSIONS, contracting("0006")], {**ADDS, **REMOVES})
DIFFERENCES: dict[str, Difference] = {
    "version": ([], {}),
    "wire": ([BOTH_VERSIONS], {}),
    "schema": ([], ADDS),
    "everything": EVERYTHING,
}
HOST_BY_HOST, BOTH_AT_ONCE, IMPOSSIBLE = 0, 3, 4


class NodeOfRelease(NodeUnderTest):
    """A node whose query process needs no Spark, and whose commands are of its own release."""

    program = ("-m", "tests.faults.matrix.supervised")
    signs: ClassVar[Mapping[str, str]] = {
        **NodeUnderTest.signs,
        "query": r"tests\.faults\.matrix\.stand_in",
    }


def step(node: NodeUnderTest, *words: str) -> None:
    """Run a step of the upgrade on the node's host, with the release of the node."""
    assert node.code is not None
    done = run(node.code, "upgrade", *words, "--url", node.url, "--wait", str(PATIENCE))
    assert done.returncode == 0, done.stderr


def upgrade_host(node: NodeUnderTest, code: Path) -> None:
    """Do what docs/UPGRADE.md says for one host."""
    step(node, "prepare")
    assert node.stop() == 0
    node.code = code
    node.start()
    step(node, "verify")


class Load(threading.Thread):
    """Sends numbered events, each until a node has acked it, and remembers how many."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._pair, self._ended, self.acked = pair, threading.Event(), 0

    def run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            for node in (self._pair.a, self._pair.b):
                if _is_stored(node, self.acked):
                    self.acked += 1
                    break

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def _is_stored(node: NodeUnderTest, number: int) -> bool:
    try:
        sent = node.send("events", [{"id": number, "text": "x"}], ("load", number))
    except httpx.HTTPError:
        return False
    return sent.status_code == 200


@contextmanager
def loaded_pair(directory: Path, url: str, code: Path) -> Iterator[tuple[Pair, Load]]:
    """Run a pair of the release ``code`` under load; afterwards each event must be stored and in
    the sink once."""
    assert run(code, "db", "init", "--url", url).returncode == 0
    pair = Pair(directory, APPLICATION, url, NodeOfRelease)
    for node in pair.nodes.values():
        node.code = code
    with running_pair(pair):
        pair.wait_protected()
        load = Load(pair)
        load.start()
        yield pair, load
        load.end()
        pair.wait_settled()
        active = pair.wait_protected()
        assert pair.other(active).stop() == 0
        assert active.stop() == 0
    stored = Counter(one.sequence for event in stored_events(active) for one in event.submissions)
    assert stored == dict.fromkeys(range(load.acked), 1)
    published = rows(url, "SELECT id FROM copies")
    assert Counter(published) == {(n,): 1 for n in range(load.acked)}


def lose_active(pair: Pair, load: Load) -> None:
    """Kill the active; return once the other one has taken over and the pair is whole again."""
    active = pair.wait_protected()
    active.kill_everything()
    other, before = pair.other(active), load.acked
    wait_until(lambda: other.is_active() and load.acked > before, within=PATIENCE, every=0.1)
    active.start()
    pair.wait_protected()


def change_release(pair: Pair, load: Load, code: Path) -> None:
    """Bring both hosts to the release ``code``, and lose the active after each step."""
    second = pair.wait_protected()
    upgrade_host(pair.other(second), code)
    assert len(pair.versions()) == 2
    lose_active(pair, load)
    lose_active(pair, load)
    assert pair.active() is second
    upgrade_host(second, code)
    assert len(pair.versions()) == 1
    lose_active(pair, load)


@pytest.fixture(autouse=True)
def _java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a node ask Java for its version only."""
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))


def releases(
    directory: Path, changes: Sequence[Change], migrations: Mapping[str, str]
) -> tuple[Path, Path]:
    old = release(directory / "old", version("8.0.0"))
    return old, release(directory / "new", version("9.0.0"), *changes, migrations=migrations)


def check(code: Path, target: Path, pair: Pair) -> int:
    """The exit code of ``upgrade check`` on the host of the first node."""
    return run(
        code, "upgrade", "check", "--to", str(target), "-c", str(pair.a.config_path)
    ).returncode


@pytest.mark.nightly("tests/upgrade and tests/postgres/test_schema_floor.py have its parts")
def test_an_upgrade_under_load_survives_a_failover_and_ends_with_finalize(
    database_url: str, tmp_path: Path
) -> None:
    old, new = releases(tmp_path, *EVERYTHING)
    db = ("db", "upgrade", "--url", database_url)
    with loaded_pair(tmp_path, database_url, old) as (pair, load):
        assert run(new, *db).returncode == 0
        second = pair.wait_protected()
        upgrade_host(pair.other(second), new)
        refused = run(new, *db, "--finalize")
        assert f"{second.name} of group test (ha-engine 8.0.0)" in refused.stderr
        lose_active(pair, load)
        upgrade_host(second, new)
        assert run(new, *db, "--finalize").returncode == 0
        assert check(new, old, pair) == IMPOSSIBLE
    second.code = old
    with running(second):
        assert second.process is not None
        assert wait_ended(second.process, within=PATIENCE) == 2
    assert "serves only engines that know schema version 0006" in second.log_text()


@pytest.mark.nightly("tests/upgrade and tests/postgres/test_schema_floor.py have its parts")
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_pair_goes_to_a_release_and_back_with_a_failover_after_each_step(
    database_url: str, tmp_path: Path, difference: str
) -> None:
    old, new = releases(tmp_path, *DIFFERENCES[difference])
    with loaded_pair(tmp_path, database_url, old) as (pair, load):
        assert check(old, new, pair) == HOST_BY_HOST
        assert run(new, "db", "upgrade", "--url", database_url).returncode == 0
        lose_active(pair, load)
        change_release(pair, load, new)
        assert check(new, old, pair) == HOST_BY_HOST
        change_release(pair, load, old)


@pytest.mark.nightly("tests/upgrade/test_comparison.py has the verdict")
@pytest.mark.parametrize("change", [(*SEMANTICS, "BATCH_SEMANTICS = 2"), SPARK])
def test_releases_whose_batches_differ_change_at_once_and_back(
    database_url: str, tmp_path: Path, change: Change
) -> None:
    """As another minor version of Spark: the nodes refuse each other meanwhile."""
    old, new = releases(tmp_path, [change], {})
    with loaded_pair(tmp_path, database_url, old) as (pair, load):
        for before, after in ((old, new), (new, old)):
            assert check(before, after, pair) == BOTH_AT_ONCE
            active = pair.wait_protected()
            passive = pair.other(active)
            assert passive.stop() == 0
            active.kill_everything()
            active.code = passive.code = after
            active.start()
            acked = load.acked
            wait_until(lambda acked=acked: load.acked > acked, within=PATIENCE, every=0.1)
            passive.start()
            lose_active(pair, load)
