"""The files for systemd, checked by systemd's own tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ha_engine.supervisor import supervised_query, supervisor
from tests.programs import needs

CONF = Path(__file__).parents[1] / "conf"
EXPOSURE_MAX = 15
"""The limit of the score of ``systemd-analyze security``, in tenths. The unit has 14."""


pytestmark = needs("systemd-analyze", "systemd-sysusers")


def run(*command: str) -> str:
    """Run the command and return its output; fail with it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with the path of an installed command."""
    text = (CONF / "systemd" / "ha-engine.service").read_text()
    installed = str(Path(sys.executable).with_name("ha-engine"))
    copy = tmp_path / "ha-engine.service"
    copy.write_text(text.replace("/opt/ha-engine/bin/ha-engine", installed))
    return copy


def test_the_unit_is_valid(unit: Path) -> None:
    assert run("systemd-analyze", "verify", "--man=no", str(unit)) == ""


def test_the_unit_is_hardened(unit: Path) -> None:
    words = ("--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager")
    run("systemd-analyze", "security", *words, str(unit))


def test_systemd_waits_longer_than_the_supervisor_does(unit: Path) -> None:
    needed = supervisor.STOP_SECONDS + supervised_query.QUERY_STOP_SECONDS
    settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line[1:])
    assert int(settings["TimeoutStopSec"].removesuffix("s")) > 2 * needed
    assert int(settings["WatchdogSec"].removesuffix("s")) > 2 * supervisor.BACKOFF_SECONDS_MAX
    assert settings["KillMode"] == "mixed"


def test_sysusers_file_creates_the_user() -> None:
    said = run("systemd-sysusers", "--dry-run", str(CONF / "sysusers.d" / "ha-engine.conf"))
    assert "ha-engine" in said
