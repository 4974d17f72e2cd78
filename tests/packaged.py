"""The project as others install it: built into a wheel, and put into an environment of its own."""

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
    """What it prints; fails when it ends with anything but 0."""
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
    """The environment without what leads programs to this source tree or to a node of ours."""
    ours = ("PYTHONPATH", "HA_ENGINE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def only(paths: Iterable[Path]) -> Path:
    (path,) = paths
    return path


def build(directory: Path) -> None:
    """Wheel and source distribution, into ``directory``."""
    run(sys.executable, "-m", "hatchling", "build", "-d", directory, cwd=ROOT)


def install(wheel: Path, home: Path) -> Path:
    """The bin directory of an environment with the wheel, which sees the packages that it needs."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "install", *options, wheel, cwd=home)
    # Only the directory: an editable installation in it is not followed.
    packages = only(home.glob("lib/python*/site-packages"))
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent
