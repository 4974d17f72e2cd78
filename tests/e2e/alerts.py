"""The project's alerts in a real Prometheus, which must fire during a fault."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import yaml

from tests.e2e.prometheus import PATIENCE, RULES, Prometheus
from tests.waiting import wait_until


def alerts() -> dict[str, dict[str, Any]]:
    """Return the rule of each alert by its name."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def hastened_rules() -> str:
    """Return the alerts with seconds in place of minutes where they wait for something to last."""
    rules = re.sub(r"for: \w+", "for: 1s", RULES.read_text())
    rules, changed = re.subn(r"changes\(([\w{}]+)\[\d+m\]\)", r"changes(\1[3s])", rules)
    assert changed == 3
    return rules


def require_firing(
    prometheus: Prometheus,
    names: set[str],
    fault: AbstractContextManager[None],
    within: float = PATIENCE,
) -> None:
    """Require that the alerts ``names`` are silent before ``fault`` and fire during it, and that
    the summary of each alert that fires has its values."""
    rules = alerts()
    wait_until(lambda: not names & prometheus.firing(), within=within)
    with fault:
        until_firing(prometheus, names, within)
        for alert in prometheus.firing_alerts():
            _require_filled(alert, rules[alert["labels"]["alertname"]])


def until_firing(prometheus: Prometheus, names: set[str], within: float = PATIENCE) -> None:
    wait_until(lambda: names <= prometheus.firing(), within=within)


def _require_filled(alert: dict[str, Any], rule: dict[str, Any]) -> None:
    """Require a value for each label that the summary of the alert names."""
    summary = alert["annotations"]["summary"]
    named = re.findall(r"\{\{ \$labels\.(\w+) \}\}", rule["annotations"]["summary"])
    assert all(alert["labels"].get(label) for label in named), alert
    assert "error expanding" not in summary
    assert "no value" not in summary
