"""Write docs/CONFIGURATION.md from the schema of the config: every key, and nothing by hand.

python -m tests.docs.reference
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ha_engine.config.group import GROUP_WIDE
from ha_engine.config.load import Setting, settings
from ha_engine.config.show import config_schema

PAGE = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"

_HEAD = """\
# Configuration reference

This page lists every key of the config file. The command `make reference` writes this page from the
schema of the config. To write a config file, copy keys from
[ha-engine.sample.yaml](../conf/ha-engine.sample.yaml), which has all of them. The command
`ha-engine config schema` prints the keys as a JSON schema for an editor. The command
`ha-engine config show` prints the value of each key on a node and the origin of each value.

- A **duration** is a number with a unit: `ms`, `s`, `m`, `h` or `d`.
- A **size** is a number with a unit: `B`, `KiB`, `MiB`, `GiB` or `TiB`.
- An **address** is `host:port`, with an IPv6 host in brackets.
- A relative **path** starts at the directory of the config file.
- A **secret** may be written as a reference, which is `env:NAME` or `file:/path`. The command
  `ha-engine config show` prints the reference to a secret, never the secret.
- Each key has an environment variable, which overrides the file: `HA_ENGINE_LEASE_TTL` sets
  `lease.ttl`. The environment variable of a mapping contains YAML.
- The node refuses a key that is unknown or written twice. The node also refuses a value that its
  section or another key does not allow. The command `ha-engine config check` reports every problem
  of the config at once.
- **Group-wide** keys must be equal on every node of a group, or the nodes refuse each other.
- A change of a key takes effect at the next start of the node. A change of a **reloadable** key
  takes effect at the next reload of the config.
"""


def written() -> str:
    """Return the whole page."""
    schema = config_schema()
    sections: dict[str, list[Setting]] = {}
    for setting in settings():
        sections.setdefault(".".join(setting.key[:-1]), []).append(setting)
    pieces = [_section(name, members, schema) for name, members in sections.items()]
    return "\n".join([_HEAD, *pieces])


def _section(name: str, members: list[Setting], schema: dict[str, Any]) -> str:
    shape = _shape(schema, tuple(name.split(".")) if name else ())
    heading = [f"## `{name}`", "", _prose(shape["description"])] if name else ["## At the top"]
    columns = ["| key | type | default | |", "|---|---|---|---|"]
    return "\n".join([*heading, "", *columns, *(_row(one, schema) for one in members), ""])


def _row(setting: Setting, schema: dict[str, Any]) -> str:
    shape = _shape(schema, setting.key)
    default = shape["default"]
    shown = "none" if default in (None, {}) else f"`{_text(default)}`"
    told = _prose(setting.description).removesuffix(" Group-wide.")
    if ".".join(setting.key) in GROUP_WIDE:
        told += " **Group-wide.**"
    return f"| `{'.'.join(setting.key)}` | {_kind(shape, schema)} | {shown} | {told} |"


def _kind(shape: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the type in the words of the page's head, with its bounds."""
    shapes = [one for one in shape.get("anyOf", [shape]) if one.get("type") != "null"]
    (only,) = shapes
    if "enum" in only:
        return " or ".join(f"`{value}`" for value in only["enum"])
    return _type(only) + "".join(_bounds(only))


def _type(shape: dict[str, Any]) -> str:
    match shape:
        case {"type": "string", "examples": [example, *_]}:
            return {"3s": "duration", "64MiB": "size"}.get(example, "address")
        case {"format": "path"}:
            return "path"
        case {"format": "password"}:
            return "secret"
        case {"type": "object", "patternProperties": values}:
            (value,) = values.values()
            return f"mapping of names to {'addresses' if 'examples' in value else 'texts'}"
        case {"type": "object"}:
            return "mapping of names to texts"
        case {"type": "array"}:
            return "list of texts"
        case {"type": "string"}:
            return "text"
        case {"type": "integer"}:
            return "whole number"
        case {"type": "boolean"}:
            return "`true` or `false`"
    raise ValueError(f"the reference has no word for {shape}")


def _bounds(shape: dict[str, Any]) -> Iterator[str]:
    """Yield the bounds of whole numbers; the sections state those of quantities."""
    low, high = shape.get("minimum"), shape.get("maximum")
    if low is not None and high is not None:
        yield f", {low} to {high}"
    elif low is not None:
        yield f", {low} or more"


def _shape(schema: dict[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    shape = schema
    for name in key:
        shape = shape["properties"][name]
        if reference := shape.get("$ref"):
            shape = schema["$defs"][reference.rpartition("/")[2]]
    return shape


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written())
