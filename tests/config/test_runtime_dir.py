"""The directory of the node's socket is private to its user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ha_engine.errors import ConfigError
from ha_engine.system.runtime_dir import make_runtime_dir


def test_runtime_directory_is_private_to_its_user(tmp_path: Path) -> None:
    made = make_runtime_dir(tmp_path / "run" / "node")
    assert made.stat().st_mode & 0o777 == 0o700
    assert make_runtime_dir(made) == made


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o750])
def test_directory_that_others_may_use_is_refused_and_keeps_its_mode(
    tmp_path: Path, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}, so other users may use it"):
        make_runtime_dir(shared)
    assert shared.stat().st_mode & 0o7777 == mode


def test_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(ConfigError, match="belongs to another user"):
        make_runtime_dir(tmp_path / "link")
    if os.getuid() == 0:
        os.chown(real, 12345, 12345)
        with pytest.raises(ConfigError, match="belongs to another user"):
            make_runtime_dir(real)
