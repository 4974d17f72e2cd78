"""How commands print an answer that people and programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

FormatOption = Annotated[
    Literal["pretty", "json", "yaml"], typer.Option("--format", "-f", help="How to print it.")
]


def print_tree(tree: Mapping[str, Any], output: Literal["json", "yaml"]) -> None:
    """Plain values, as one JSON line or as YAML."""
    if output == "json":
        typer.echo(json.dumps(tree))
    else:
        import yaml

        typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)
