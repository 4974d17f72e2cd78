"""YAML for files that people write: a key that is written twice is an error."""

from __future__ import annotations

from typing import Any

import yaml


class NotYaml(Exception):
    """The text is not valid YAML, or has a key twice. The message quotes no part of the text, which
    may have a password."""


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that refuses a mapping in which a key occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {name!r} is written twice", problem_mark=key_node.start_mark
                )
            seen.add(name or key_node)
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """Parse ``text`` into plain values. Raises NotYaml."""
    try:
        # yaml.load is safe here: _StrictLoader is a SafeLoader, and builds plain values only.
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.problem is None or mark is None:
            raise NotYaml("it has a structure that YAML does not allow") from None
        raise NotYaml(f"{error.problem}, in line {mark.line + 1}") from None
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError):
        # A date such as 2026-99-99 raises ValueError, and a text with the tag of a timestamp
        # AttributeError. Endless nesting raises RecursionError.
        raise NotYaml("it contains characters or a structure that YAML does not allow") from None
