"""YAML for files that people write: a key that is written twice is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

Keys: TypeAlias = tuple[str | int, ...]
"""A place in a document: the keys of mappings and the indexes of lists on the way to it."""


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


class _JsonLoader(_StrictLoader):
    """A strict loader whose bare words are those of JSON. All others are texts, such as ``no``,
    ``012``, ``5:30`` and a timestamp."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - add_implicit_resolver extends it


for _kind, _words, _first in (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
    ("merge", r"<<", ["<"]),
):
    _JsonLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_words})$"), _first
    )


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a text, and the root of its nodes, which know their places in the text."""

    values: Any
    root: yaml.Node | None

    def node(self, keys: Keys) -> yaml.Node | None:
        """The node of the value at ``keys``, or the last one on the way there."""
        *_, (_, node) = self._way(keys)
        return node

    def key(self, keys: Keys) -> yaml.Node | None:
        """The node of the key or list item at ``keys``, or the last one on the way there."""
        *_, (key, _) = self._way(keys)
        return key

    def line(self, keys: Keys) -> int:
        """The number of the line, from 1, of the key or list item at ``keys``."""
        key = self.key(keys)
        return 1 if key is None else int(key.start_mark.line) + 1

    def _way(self, keys: Keys) -> Iterator[tuple[yaml.Node | None, yaml.Node | None]]:
        """The nodes of each key and its value, as far as they exist."""
        yield self.root, self.root
        node = self.root
        for word in keys:
            inner = None if node is None else _inner(node, word)
            if inner is None:
                return
            yield inner
            node = inner[1]


def _inner(node: yaml.Node, word: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    match node, word:
        case yaml.MappingNode(), _:
            # A merged key comes before the mapping's own key of the same name.
            found = [(key, value) for key, value in node.value if key.value == str(word)]
            return found[-1] if found else None
        case yaml.SequenceNode(), int() if word < len(node.value):
            return node.value[word], node.value[word]
        case _:
            return None


def parse_document(text: str) -> Document:
    """Parse ``text``, whose bare words are those of JSON, so that no other word becomes a number,
    a boolean or a date. Raises NotYaml."""
    with _explained():
        loader = _JsonLoader(text)
        try:
            root = loader.get_single_node()
            return Document(None if root is None else loader.construct_document(root), root)
        finally:
            loader.dispose()


def parse(text: str) -> Any:
    """Parse ``text`` into plain values. Raises NotYaml."""
    with _explained():
        # yaml.load is safe here: _StrictLoader is a SafeLoader, and builds plain values only.
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.problem is None or mark is None:
            raise NotYaml("it has a structure that YAML does not allow") from None
        raise NotYaml(f"{error.problem}, in line {mark.line + 1}") from None
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError):
        # A date such as 2026-99-99 raises ValueError, and a text with the tag of a timestamp
        # AttributeError. Endless nesting raises RecursionError.
        raise NotYaml("it contains characters or a structure that YAML does not allow") from None
