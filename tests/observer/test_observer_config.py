"""The answers of ``ha-engine observe --check`` about the file of an observer, and its sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ha_engine.cli.root import program
from ha_engine.config.load import load_tree, settings
from ha_engine.config.observer import ObserverConfig
from ha_engine.errors import ConfigError
from ha_engine.observer import process

SAMPLE = Path(__file__).parents[2] / "conf" / "observer.sample.yaml"
NODES = {"node-a": "http://10.0.0.11:8080"}


def check(directory: Path, config: dict[str, Any], **environ: str) -> list[str]:
    file = directory / "observer.yaml"
    file.write_text(yaml.safe_dump(config))
    return process.check(file, environ)


def test_the_nodes_are_named(tmp_path: Path) -> None:
    assert check(tmp_path, {"watch": {"nodes": NODES}}) == ["node-a"]
    words = ["observe", "--check", "--config", str(tmp_path / "observer.yaml")]
    assert CliRunner().invoke(program(), words).output == "OK: watches node-a\n"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "watch.nodes has no node"),
        ({"watch": {"nodes": {"a": "10.0.0.1:8080"}}}, "watch.nodes.a"),
        ({"watch": {"nodes": NODES}, "lease": {"ttl": "5s"}}, "lease: is not a known key"),
        (
            {
                "watch": {"nodes": NODES},
                "http": {"listen": "10.0.0.1:1", "tls": {"certificate": "c", "key": "k"}},
            },
            "access.read has no token",
        ),
    ],
)
def test_problems_are_reported(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, config)
    assert reason in str(caught.value)


def test_the_token_is_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "observer.yaml"
    file.write_text(yaml.safe_dump({"watch": {"nodes": NODES, "token": "env:THE_TOKEN"}}))
    token = load_tree(ObserverConfig, file, {"THE_TOKEN": "s"}).config.watch.token
    assert token is not None
    assert token.get_secret_value() == "s"


def test_the_sample_has_the_defaults_and_descriptions() -> None:
    text = SAMPLE.read_text()
    config = load_tree(ObserverConfig, SAMPLE, {}).config
    prose = " ".join(line.strip().lstrip("# ") for line in text.splitlines())
    for setting in settings(ObserverConfig):
        assert setting.description
        if setting.key[0] == "watch":
            assert setting.description in prose, setting.key
    assert config.watch.keep_rows == ObserverConfig.model_fields["watch"].default.keep_rows
