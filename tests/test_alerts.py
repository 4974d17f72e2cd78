"""The alerts are valid, tested on minutes with faults, and each has advice."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import found, needs

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf" / "prometheus"
DASHBOARD = ROOT / "compose" / "grafana" / "dashboards" / "ha-engine.json"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CONF / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
METRIC = re.compile(r"\bha_engine_\w+")


def metrics_of_the_page() -> set[str]:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "METRICS.md").read_text(), re.MULTILINE)
    return {*rows, *(f"{row}_{part}" for row in rows for part in ("bucket", "sum", "count"))}


@needs("promtool")
@pytest.mark.parametrize("words", ["check rules alerts.yaml", "test rules alerts_test.yaml"])
def test_alerts_pass_their_promtool_tests(words: str) -> None:
    promtool = found("promtool")
    assert promtool, "apt-get install prometheus"
    done = subprocess.run(
        [promtool, *words.split()], cwd=CONF, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_firing_and_silent() -> None:
    tests = yaml.safe_load((CONF / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_has_advice(rule: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "RUNBOOK.md").read_text()
    assert re.search(rf"^## {rule['alert']}$", page, re.MULTILINE)
    assert rule["annotations"]["runbook_url"] == f"docs/RUNBOOK.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_page_names_alerts_that_exist() -> None:
    page = (ROOT / "ha_engine" / "api" / "page").rglob("*.js")
    named = {name for script in page for name in re.findall(r"'(HaEngine\w+)'", script.read_text())}
    assert named
    assert named <= {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(
    "text",
    [yaml.safe_dump(RULES), json.dumps(json.loads(DASHBOARD.read_text()))],
    ids=["alerts", "dashboard"],
)
def test_metrics_of_the_alerts_are_exposed(text: str) -> None:
    named = set(METRIC.findall(text))
    assert named
    assert named - metrics_of_the_page() == set()
