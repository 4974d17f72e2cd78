"""Configs for the tests of the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ha_engine.config import Config
from tests.e2e.without_spark import APPLICATION


def config_in(home: Path, url: str = "embedded", **sections: Any) -> Config:
    """Return the config of a node below ``home``, with a valid application."""
    application = home / "application.yaml"
    application.write_text(APPLICATION)
    database = {"url": url, "embedded_dir": home / "postgres"}
    node = {"id": "node-a", "data_dir": home / "data"}
    tree = {"group": "test", "application": application, "node": node, "database": database}
    return Config.model_validate({**tree, **sections})


def quiet(_progress: str) -> None:
    """Take the progress of a check."""
