"""``ha-engine config``: check the config, show the origin of its values, print its schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ha_engine.cli import formats
from ha_engine.cli.formats import FormatOption, JsonOption

app = typer.Typer(
    help="Check and show the configuration.\n\nExample: ha-engine config check -c engine.yaml",
    no_args_is_help=True,
)

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="HA_ENGINE_CONFIG",
        help="Config file, or a directory of them; without it: defaults and HA_ENGINE_*.",
    ),
]
"""The option that every command with a config takes."""


@app.command()
def check(path: ConfigPath = None) -> None:
    """Check config, application and certificates, and print OK or every problem, one per line.

    The command reads the same files as a node at its start, starts nothing, and uses no database.

    Example: ha-engine config check -c engine.yaml
    """
    from ha_engine.config.load import load_config
    from ha_engine.node.check import read_all

    read = read_all(load_config(path, os.environ))
    typer.echo(f"OK: {', '.join(['config', *read])}")


@app.command()
def show(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Print every setting with its value and the origin of that value; secrets are redacted.

    Example: ha-engine config show -c engine.yaml -f yaml
    """
    from ha_engine.config.load import load
    from ha_engine.config.show import shown_settings

    shown = shown_settings(load(path, os.environ))
    tree = {s.name: {"value": s.value, "from": s.origin} for s in shown}
    rows = [(s.name, _text(s.value), s.origin) for s in shown]
    formats.show(tree, output, as_json, lambda: _print_table(rows))


@app.command()
def schema() -> None:
    """Print the JSON schema of the config, for editors.

    Example: ha-engine config schema
    """
    from ha_engine.config.show import config_schema

    typer.echo(json.dumps(config_schema(), indent=2))


@app.command()
def token(output: FormatOption = "pretty", as_json: JsonOption = False) -> None:
    """Make a token for a client, and print it with its SHA-256 for the section 'access'.

    ha-engine does not store the token. Clients read their token from the environment variable
    HA_ENGINE_TOKEN.

    Example: ha-engine config token
    """
    from ha_engine.auth import digest_of, new_token

    made = new_token()
    tree = {"token": made, "sha256": digest_of(made)}
    lines = "\n".join(f"{name:7} {value}" for name, value in tree.items())
    formats.show(tree, output, as_json, lambda: typer.echo(lines))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        typer.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}")
