"""Print an answer of a command for people or for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 1_000

Format = Literal["pretty", "json", "yaml"]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Format of the output.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -f json.")]


def time_of(at_us: int) -> str:
    """A time in microseconds since 1970, in UTC."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def console_of_tables() -> Console:
    """A console for tables, which are cut to the width of a terminal only. A file or the log of a
    CI has no width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    return Console(soft_wrap=True, highlight=False, width=width)


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
