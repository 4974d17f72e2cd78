"""A real Prometheus scrapes two nodes, and the alerts of the project fire on a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.pair import Pair, running_pair
from tests.e2e.prometheus import PATIENCE, RULES, scraping
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [needs("prometheus"), pytest.mark.slow]


def test_the_alerts_fire_when_the_active_is_killed(module_database: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, APPLICATION, module_database, NodeWithoutSpark, **ROOM)
    # Minutes are too long for a test.
    rules = re.sub(r"for: \w+", "for: 1s", RULES.read_text())
    with running_pair(pair), scraping(pair, tmp_path / "prometheus", rules) as prometheus:
        wait_until(pair.is_protected, within=PATIENCE)
        active = pair.active()
        assert active is not None
        wait_until(
            lambda: prometheus.values("ha_engine_role") == roles(pair, active.name), within=PATIENCE
        )
        wait_until(
            lambda: not prometheus.firing() & {"HaEngineNotProtected", "HaEngineNoActive"},
            within=PATIENCE,
        )
        active.kill_everything()
        other = pair.other(active)
        wait_until(
            lambda: {"HaEngineNodeDown", "HaEngineNotProtected"} <= prometheus.firing(),
            within=PATIENCE,
        )
        wait_until(lambda: prometheus.values("ha_engine_role") == {other.name: 4}, within=PATIENCE)
        wait_until(lambda: "HaEngineNoActive" not in prometheus.firing(), within=PATIENCE)


def roles(pair: Pair, active: str) -> dict[str, float]:
    return {name: 4 if name == active else 2 for name in pair.nodes}
