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
"""The limit of the score of ``systemd-analyze security``, in tenths. The units have 14."""


pytestmark = needs("systemd-analyze", "systemd-sysusers")


def run(*command: str) -> str:
    """Run the command and return its output; fail with it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


UNITS = (
    "ha-engine.service",
    "ha-engine@totals.service",
    "ha-engine-receiver.service",
    "ha-engine-observer.service",
)


def installed(name: str, directory: Path) -> Path:
    """Copy the unit with the path of an installed command. The unit of a group is that of a node
    under another name."""
    text = (CONF / "systemd" / name.replace("@totals", "")).read_text()
    command = str(Path(sys.executable).with_name("ha-engine"))
    copy = directory / name
    copy.write_text(text.replace("/opt/ha-engine/bin/ha-engine", command))
    return copy


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_is_valid(name: str, tmp_path: Path) -> None:
    assert run("systemd-analyze", "verify", "--man=no", str(installed(name, tmp_path))) == ""


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_is_hardened(name: str, tmp_path: Path) -> None:
    words = ("--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager")
    run("systemd-analyze", "security", *words, str(installed(name, tmp_path)))


def test_systemd_waits_longer_than_the_supervisor_does(tmp_path: Path) -> None:
    unit = installed("ha-engine.service", tmp_path)
    needed = supervisor.STOP_SECONDS + supervised_query.QUERY_STOP_SECONDS
    settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line[1:])
    assert int(settings["TimeoutStopSec"].removesuffix("s")) > 2 * needed
    assert int(settings["WatchdogSec"].removesuffix("s")) > 2 * supervisor.BACKOFF_SECONDS_MAX
    assert settings["KillMode"] == "mixed"


def test_sysusers_file_creates_the_user() -> None:
    said = run("systemd-sysusers", "--dry-run", str(CONF / "sysusers.d" / "ha-engine.conf"))
    assert "ha-engine" in said
