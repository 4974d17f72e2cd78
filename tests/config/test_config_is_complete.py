"""The config tree, its schema, its sample file and the output of ``show`` agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.config import Config
from ha_engine.config.load import Loaded, load, load_config, settings
from ha_engine.config.quantities import format_duration, format_size, parse_duration, parse_size
from ha_engine.config.show import config_schema, shown_settings

SAMPLE = Path(__file__).parents[2] / "conf" / "ha-engine.sample.yaml"


def leaf(tree: dict[str, Any], key: tuple[str, ...]) -> Any:
    value: Any = tree
    for name in key:
        value = value[name]
    return value


def uncommented(text: str) -> str:
    """Return the sample with its commented-out settings enabled; prose has a space after the #."""
    return re.sub(r"^( *)#(?=[a-z_.]+:)", r"\1", text, flags=re.MULTILINE)


def test_sample_loads_unchanged() -> None:
    assert load_config(SAMPLE, {}).lease == Config().lease


def test_sample_has_every_key_with_its_default_and_description() -> None:
    text = SAMPLE.read_text()
    tree = yaml.safe_load(uncommented(text))
    schema = {s.name: s.value for s in shown_settings(Loaded(Config(), {}, {}))}
    prose = " ".join(re.sub(r"^ *# ?", "", text, flags=re.MULTILINE).split())
    for setting in settings():
        assert leaf(tree, setting.key) == schema[".".join(setting.key)], setting.key
        assert setting.description in prose, setting.key


def test_sample_has_no_unknown_key(tmp_path: Path) -> None:
    everything = tmp_path / "all.yaml"
    everything.write_text(uncommented(SAMPLE.read_text()))
    loaded = load(everything, {})
    assert set(loaded.origins) == {s.key for s in settings() if not s.holds(dict)}


def test_every_key_has_a_description_of_one_sentence() -> None:
    for setting in settings():
        assert setting.description.endswith("."), setting.key
        assert setting.description[0].isupper() or setting.description[0] == "'", setting.key


def test_schema_has_every_key_with_default_and_description() -> None:
    schema = config_schema()
    for setting in settings():
        shape = schema["properties"][setting.key[0]]
        for name in setting.key[1:]:
            shape = schema["$defs"][shape["$ref"].rpartition("/")[2]]["properties"][name]
        assert shape["description"] == setting.description
        assert "default" in shape


def test_show_prints_every_setting_and_no_secret() -> None:
    environ = {
        "HA_ENGINE_DATABASE_URL": "postgresql://engine:hunter2@db/f",
        "HA_ENGINE_QUERY_SPARK": "{spark.ui.enabled: false}",
    }
    shown = {s.name: s for s in shown_settings(load(None, environ))}
    assert shown["database.url"].value == "**redacted**"
    assert shown["database.url"].origin == "HA_ENGINE_DATABASE_URL"
    assert shown["query.spark.spark.ui.enabled"].value == "false"
    assert shown["lease.ttl"].value == "5s"
    assert shown["lease.ttl"].origin == "default"
    assert {".".join(s.key) for s in settings()} - set(shown) == {"query.spark"}


@given(st.integers(0, 10**9))
def test_duration_survives_a_round_trip(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.integers(0, 1 << 50))
def test_size_survives_a_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size
