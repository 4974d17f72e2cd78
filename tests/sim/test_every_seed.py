"""No history breaks a rule, each heals, and together they reach the rare defences."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests import tiers
from tests.sim.history import play
from tests.sim.many import Result, known_seeds, play_all
from tests.sim.variants import Variant
from tests.tiers import THOROUGH_SEEDS

CORES = os.cpu_count() or 1
REACHED_AT_LEAST = {
    "acquisitions": 2000,
    "failovers": 500,
    "switchovers": 100,
    "demotions": 500,
    "cuts": 100,
    "suspensions": 300,
    "resumes": 100,
    "promises given": 2000,
    "promises used": 1000,
    "in-sync joins": 500,
    "in-sync removals": 200,
    "removal races": 50,
    "unknown outcomes resolved": 500,
    "late writes": 200,
    "late packets": 500,
    "fenced publishers": 200,
    "regressed rows": 100,
    "rewrites": 50,
    "outages noted": 500,
    "queries given up": 10,
    "duplicates answered": 500,
    "supervisor releases": 100,
    "wiped disks": 50,
    "operator repairs": 50,
    "snapshots visible": 1000,
    "journals trimmed": 500,
    "restores": 50,
    "batches observed": 30_000,
    "batches missed by the observer": 400,
}
"""The counts that THOROUGH_SEEDS seeds must reach; about half of their present counts."""


FORCED_SHARE = 0.15
"""The share of the seeds that are played with forced failovers too."""
FORCED_REACH_AT_LEAST = {
    "forced failovers": 20,
    "journals set aside": 15,
    "records given up": 150,
    "requests given up": 50,
}
"""The counts that this share of THOROUGH_SEEDS seeds must reach."""
ROLLED_BACK_SHARE = 0.1
"""The share of the seeds that are played with disks that go back too."""
ROLLED_BACK_AT_LEAST = 100
WARM_SHARE = 0.3
"""The share of the seeds that are played with a query that only the active runs."""
WARM_REACH_AT_LEAST = {
    "checkpoints of others continued": 250,
    "warm queries restored from a snapshot": 12,
}

RESCALED_SHARE = 0.1
"""The share of the seeds that are played with an operator who rescales queries."""
RESCALED_AT_LEAST = 500
DEPLOYED_SHARE = 0.1
"""The share of the seeds that are played with an operator who deploys applications."""
DEPLOYED_REACH_AT_LEAST = {"deployments": 500, "restarts with another application": 1_000}

SHADOWED_SHARE = 0.1
"""The share of the seeds that are played with an operator who runs queries in shadow."""
SHADOWED_REACH_AT_LEAST = {"shadows": 100, "shadows discarded": 20, "promotions in force": 20}

BACKUP_SHARE = 0.3
"""The share of the seeds that are played with a backup."""
BACKUP_REACH_AT_LEAST = {
    "backups listed": 100,
    "backups relieved": 80,
}


def least(of_all: int, seeds: int) -> float:
    """Return the counts that ``seeds`` seeds must reach; few seeds differ more than
    THOROUGH_SEEDS."""
    return of_all if seeds == THOROUGH_SEEDS else of_all * seeds / THOROUGH_SEEDS / 2


@pytest.fixture(scope="module")
def seeds(request: pytest.FixtureRequest) -> int:
    return tiers.seeds(request.config)


def played(variant: Variant, share: float, seeds: int) -> Result:
    """Play the known seeds of ``variant``, and a share of the seeds."""
    numbers = range(1, int(seeds * share) + 1)
    one = partial(play, variant=variant)
    return play_all([*known_seeds(variant), *numbers], CORES, play=one)


@pytest.fixture(scope="module")
def forced(seeds: int) -> Result:
    return played(Variant.FORCED, FORCED_SHARE, seeds)


@pytest.mark.slow
def test_no_forced_failover_breaks_a_rule_and_each_heals(forced: Result) -> None:
    assert forced.failed == [], "\n\n".join(forced.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", FORCED_REACH_AT_LEAST)
def test_forced_failovers_reach_each_rare_case(what: str, forced: Result, seeds: int) -> None:
    assert forced.counters[what] >= least(FORCED_REACH_AT_LEAST[what], seeds), forced.summary


@pytest.fixture(scope="module")
def rolled_back(seeds: int) -> Result:
    return played(Variant.ROLLED_BACK, ROLLED_BACK_SHARE, seeds)


@pytest.mark.slow
def test_no_disk_that_goes_back_breaks_a_rule(rolled_back: Result, seeds: int) -> None:
    assert rolled_back.failed == [], "\n\n".join(rolled_back.stories[:1])
    assert rolled_back.counters["disks that went back"] >= least(ROLLED_BACK_AT_LEAST, seeds)


@pytest.fixture(scope="module")
def warm(seeds: int) -> Result:
    return played(Variant.WARM, WARM_SHARE, seeds)


@pytest.mark.slow
def test_no_history_with_a_warm_query_breaks_a_rule(warm: Result) -> None:
    assert warm.failed == [], "\n\n".join(warm.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", WARM_REACH_AT_LEAST)
def test_warm_queries_reach_each_rare_case(what: str, warm: Result, seeds: int) -> None:
    assert warm.counters[what] >= least(WARM_REACH_AT_LEAST[what], seeds), warm.summary


@pytest.fixture(scope="module")
def rescaled(seeds: int) -> Result:
    return played(Variant.RESCALED, RESCALED_SHARE, seeds)


@pytest.mark.slow
def test_no_history_with_rescaled_queries_breaks_a_rule(rescaled: Result, seeds: int) -> None:
    assert rescaled.failed == [], "\n\n".join(rescaled.stories[:1])
    assert rescaled.counters["queries rescaled"] >= least(RESCALED_AT_LEAST, seeds)


@pytest.fixture(scope="module")
def deployed(seeds: int) -> Result:
    return played(Variant.DEPLOYED, DEPLOYED_SHARE, seeds)


@pytest.mark.slow
def test_no_deployment_breaks_a_rule_and_each_heals(deployed: Result) -> None:
    assert deployed.failed == [], "\n\n".join(deployed.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", DEPLOYED_REACH_AT_LEAST)
def test_deployments_reach_each_case(what: str, deployed: Result, seeds: int) -> None:
    assert deployed.counters[what] >= least(DEPLOYED_REACH_AT_LEAST[what], seeds), deployed.summary


@pytest.fixture(scope="module")
def shadowed(seeds: int) -> Result:
    return played(Variant.SHADOWED, SHADOWED_SHARE, seeds)


@pytest.mark.slow
def test_no_shadow_breaks_a_rule_and_each_heals(shadowed: Result) -> None:
    assert shadowed.failed == [], "\n\n".join(shadowed.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", SHADOWED_REACH_AT_LEAST)
def test_shadows_reach_each_case(what: str, shadowed: Result, seeds: int) -> None:
    assert shadowed.counters[what] >= least(SHADOWED_REACH_AT_LEAST[what], seeds), shadowed.summary


@pytest.fixture(scope="module")
def backup(seeds: int) -> Result:
    return played(Variant.BACKUP, BACKUP_SHARE, seeds)


@pytest.mark.slow
def test_no_history_with_a_backup_breaks_a_rule(backup: Result) -> None:
    assert backup.failed == [], "\n\n".join(backup.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", BACKUP_REACH_AT_LEAST)
def test_backups_reach_each_rare_case(what: str, backup: Result, seeds: int) -> None:
    assert backup.counters[what] >= least(BACKUP_REACH_AT_LEAST[what], seeds), backup.summary


@pytest.fixture(scope="module")
def result(seeds: int) -> Result:
    return play_all([*known_seeds(), *range(1, seeds + 1)], CORES)


@pytest.mark.slow
def test_no_history_breaks_a_rule_and_each_heals(result: Result) -> None:
    assert result.failed == [], "\n\n".join(result.stories[:1])


@pytest.mark.slow
@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_reach_each_rare_case(what: str, result: Result, seeds: int) -> None:
    assert result.counters[what] >= least(REACHED_AT_LEAST[what], seeds), result.summary
