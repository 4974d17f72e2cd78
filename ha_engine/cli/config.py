"""``ha-engine config``: check what is configured, show where it comes from, print its schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="HA_ENGINE_CONFIG",
        help="Config file, or a directory of them; without it the defaults and HA_ENGINE_* hold.",
    ),
]
"""The option that every command with a config takes."""


@app.command()
def check(path: ConfigPath = None) -> None:
    """Print OK, or every problem, one a line."""
    from ha_engine.config.load import load_config

    load_config(path, os.environ)
    typer.echo("OK")


@app.command()
def show(
    path: ConfigPath = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print every setting, its value and where that came from; secrets are redacted."""
    from ha_engine.config.load import load
    from ha_engine.config.show import shown_settings

    shown = shown_settings(load(path, os.environ))
    if as_json:
        typer.echo(json.dumps({s.name: {"value": s.value, "from": s.origin} for s in shown}))
    else:
        _print_table([(s.name, _text(s.value), s.origin) for s in shown])


@app.command()
def schema() -> None:
    """Print the JSON schema of the config, for editors."""
    from ha_engine.config.show import config_schema

    typer.echo(json.dumps(config_schema(), indent=2))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        typer.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}")
