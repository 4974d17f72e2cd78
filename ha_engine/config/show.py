"""Show the config to people and editors: values with their origin, secrets redacted, a schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from ha_engine.config import Config
from ha_engine.config.load import DEFAULT, Key, Loaded, Setting, settings

REDACTED = "**redacted**"


@dataclass(frozen=True)
class Shown:
    """One setting: its dotted name, its value as in a file, and its origin."""

    name: str
    value: Any
    origin: str


def shown_settings(loaded: Loaded[Config]) -> list[Shown]:
    """Every setting in the order of the sample file. The value of a secret is its reference or
    redacted."""
    tree = loaded.config.model_dump(mode="json", by_alias=True)
    return [shown for setting in settings() for shown in _shown(setting, loaded, tree)]


def _shown(setting: Setting, loaded: Loaded[Config], tree: dict[str, Any]) -> Iterator[Shown]:
    value = _at(tree, setting.key)
    if setting.holds(SecretStr):
        value = _redacted(setting, loaded)
    if setting.holds(dict) and value:
        for name, text in value.items():
            key = (*setting.key, name)
            yield Shown(".".join(key), text, loaded.origins.get(key, DEFAULT))
        return
    yield Shown(".".join(setting.key), value, loaded.origins.get(setting.key, DEFAULT))


def _redacted(setting: Setting, loaded: Loaded[Config]) -> str:
    if setting.key not in loaded.origins:
        default: SecretStr = setting.default
        return default.get_secret_value()
    return loaded.references.get(setting.key, REDACTED)


def _at(tree: dict[str, Any], key: Key) -> Any:
    value: Any = tree
    for name in key:
        value = value[name]
    return value


def config_schema() -> dict[str, Any]:
    """The JSON schema of a config file. The defaults have units as in a config file."""
    schema = Config.model_json_schema(by_alias=True)
    defaults = Config().model_dump(mode="json", by_alias=True)
    for setting in settings():
        shape = _shape(schema, setting.key)
        default = setting.default
        secret = isinstance(default, SecretStr)
        shape["default"] = default.get_secret_value() if secret else _at(defaults, setting.key)
    for section in schema["properties"].values():
        if "$ref" in section:
            del section["default"]  # its keys have their own defaults
    return schema


def _shape(schema: dict[str, Any], key: Key) -> dict[str, Any]:
    shape = schema
    for name in key:
        if reference := shape.get("$ref"):
            shape = schema["$defs"][reference.rpartition("/")[2]]
        shape = shape["properties"][name]
    return shape
