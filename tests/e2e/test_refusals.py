"""Two node processes that must not work together both say so, with advice. Without Spark.

tests/sync tests the detection of each reason; these tests check the view of an operator.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.node_under_test import command
from tests.e2e.pair import Pair, running_pair
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
OF_A_LATER_ENGINE = """
import dataclasses, sys, ha_engine.node.node as parts, ha_engine.node.__main__ as node
own = parts.hello_of
parts.hello_of = lambda *given: dataclasses.replace(
    own(*given), protocol_min=2, protocol_max=3
)
sys.exit(node.main())
"""

Change = Callable[[Pair, NodeWithoutSpark], None]


def same_id(pair: Pair, b: NodeWithoutSpark) -> None:
    """Make b a second node-a; each takes the other for its peer."""
    b.name = "node-a"
    listen = yaml.safe_load(pair.a.config_path.read_text())["event_sync"]["listen"]
    b.reconfigure(node={"id": "node-a"}, event_sync={"peers": {"node-b": listen}})


def copied_data(pair: Pair, b: NodeWithoutSpark) -> None:
    """Set b up from a copy of a's disk."""
    pair.a.start()
    pair.a.wait_active(PATIENCE)
    pair.a.stop()
    shutil.copytree(pair.a.data_dir, b.data_dir)


def another_application(_: Pair, b: NodeWithoutSpark) -> None:
    b.application_path.write_text(APPLICATION.replace("SELECT id, text", "SELECT text, id"))


def another_protocol(_: Pair, b: NodeWithoutSpark) -> None:
    b.program = ("-c", OF_A_LATER_ENGINE)


def another_group(_: Pair, b: NodeWithoutSpark) -> None:
    b.reconfigure(group="other")


def other_timings(_: Pair, b: NodeWithoutSpark) -> None:
    b.reconfigure(lease={"ttl": "4s"})


CASES: dict[Change, tuple[str, str]] = {
    same_id: ("calls itself node-a, like this one", "give each node a node.id of its own"),
    copied_data: (
        "one data directory is a copy of the other",
        "run 'ha-engine reinit' on the copy",
    ),
    another_application: ("runs the application", "give both the same application file"),
    another_protocol: ("of the sync protocol, but this node", "upgrade the older engine"),
    another_group: ("is in group", "set the same 'group' on both"),
    other_timings: ("has the group-wide settings", "make all settings equal"),
}
"""The change, and the sentence of both nodes: the reason, and the advice."""


IN_SHORT = (same_id, another_application)
NIGHTLY = pytest.mark.nightly(
    "tests/sync has every reason; two of them show what an operator meets"
)
MARKED = [
    pytest.param(change, said, id=change.__name__, marks=() if change in IN_SHORT else NIGHTLY)
    for change, said in CASES.items()
]


@pytest.mark.parametrize(("change", "said"), MARKED)
def test_mismatched_nodes_both_report_the_reason_and_the_remedy(
    node_database: str, tmp_path: Path, change: Change, said: tuple[str, str]
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)
    assert isinstance(pair.b, NodeWithoutSpark)
    change(pair, pair.b)
    with running_pair(pair):
        for node in pair.nodes.values():
            wait_until(lambda node=node: _reports(node.status(), said), within=PATIENCE, every=0.1)
            log = [line for line in node.log_text().splitlines() if "peer refused" in line]
            assert any(all(part in line for part in said) for line in log)
            shown = node.command("status", environ={"COLUMNS": "1000"})
            assert all(part in shown.out for part in said), shown.out


def _reports(status: dict[str, dict[str, dict[str, str]]] | None, said: tuple[str, str]) -> bool:
    if status is None:
        return False
    reasons = [peer["refused"] for peer in status["peers"].values()]
    reasons += [str(reason) for reason in status["unknown_peers"].values()]
    return any(reason and all(part in reason for part in said) for reason in reasons)


def test_node_with_invalid_timings_does_not_start(node_database: str, tmp_path: Path) -> None:
    node = NodeWithoutSpark(tmp_path, APPLICATION, node_database)
    node.reconfigure(lease={"ttl": "1s", "renew_interval": "500ms", "db_timeout": "500ms"})
    for words in (("config", "check"), ("run",)):
        ended = command(*words, "--config", str(node.config_path))
        assert ended.code == 2
        assert "renew_interval + 2 * db_timeout is 1.5s and ttl - margin only 0.5s" in ended.err
        assert "raise ttl, or lower the others" in ended.err
