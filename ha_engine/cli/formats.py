"""Print an answer of a command for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

Format = Literal["pretty", "json", "yaml"]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Format of the output.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -f json.")]


def time_of(at_us: int) -> str:
    """A time in microseconds since 1970, in UTC."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def show(
    tree: Mapping[str, Any] | Sequence[Any],
    output: Format,
    as_json: bool,
    to_people: Callable[[], None],
) -> None:
    """Print ``tree`` as one JSON line or as YAML, or call ``to_people`` to print for people."""
    match "json" if as_json else output:
        case "json":
            typer.echo(json.dumps(tree))
        case "yaml":
            import yaml

            typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)
        case "pretty":
            to_people()
