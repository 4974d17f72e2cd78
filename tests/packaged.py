"""The installed project: built into a wheel, and installed in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 120


def run(*command: str | Path, cwd: Path, within: float = PATIENCE) -> str:
    """Run the command and return its output; fail when its exit code is not 0."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=untouched(),
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def untouched() -> dict[str, str]:
    """Return the environment without variables that name this source tree or one of its nodes."""
    ours = ("PYTHONPATH", "HA_ENGINE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def only(paths: Iterable[Path]) -> Path:
    (path,) = paths
    return path


def build(directory: Path) -> None:
    """Build wheel and source distribution into ``directory``."""
    run(sys.executable, "-m", "hatchling", "build", "-d", directory, cwd=ROOT)


def install(wheel: Path, home: Path) -> Path:
    """Return the bin directory of an environment with the wheel and access to its dependencies."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "install", *options, wheel, cwd=home)
    # Add only the directory: Python does not follow an editable installation in it.
    packages = only(home.glob("lib/python*/site-packages"))
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent
