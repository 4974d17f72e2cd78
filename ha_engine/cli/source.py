"""``ha-engine source``: look at the sources of an application."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, show
from ha_engine.cli.status import LOCAL, UrlOption

if TYPE_CHECKING:
    from ha_engine.node.connections import Peeked

app = typer.Typer(
    help="Look at the sources of an application.\n\n"
    "Example: ha-engine source peek orders.yaml orders/nats",
    no_args_is_help=True,
)


@app.callback()
def _noun() -> None:
    """Look at the sources of an application."""


@app.command()
def peek(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The application's YAML file.")],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The source as stream/source, or its name alone."),
    ],
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=1_000, help="The most rows to show.")
    ] = 10,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="How long to wait for a first row.")
    ] = 5.0,
    offset: Annotated[
        str | None,
        typer.Option(help="Show the rows after this offset, instead of the journal's."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Show the first rows of the source.")
    ] = False,
    url: UrlOption = LOCAL,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Print the rows that a source would return next as JSON, one a line, and take none of them.

    The command asks the node at --url where the source continues. Rows that are no events of the
    stream come after the others, with the reason.

    Example: ha-engine source peek orders.yaml orders/nats -n 3
    """
    from ha_engine.client.admin import fetch_status
    from ha_engine.node.connections import find_source, peek
    from ha_engine.query.application import load_application

    if from_beginning and offset is not None:
        raise typer.BadParameter("--offset and --from-beginning exclude each other")
    application = load_application(file)
    stream, source = find_source(application, name)
    group = "default"
    if offset is None and not from_beginning:
        status = fetch_status(url)
        group = str(status["group"])
        known = status["sources"].get(stream.name, {}).get(source.name)
        offset = None if known is None else known["offset"]
    found = peek(application, group, name, offset, rows, seconds)
    show(_tree(found), output, as_json, lambda: _print(found))


def _rows(found: Peeked) -> list[str]:
    import pyarrow as pa

    from ha_engine.formats.json_lines import json_lines

    return json_lines(pa.Table.from_batches([found.events])).decode().splitlines()


def _tree(found: Peeked) -> dict[str, Any]:
    import json

    return {
        "rows": [json.loads(row) for row in _rows(found)],
        "rejected": [{"place": place, "reason": reason} for place, reason in found.dead_letters],
        "offset": found.offset,
    }


def _print(found: Peeked) -> None:
    for row in _rows(found):
        typer.echo(row)
    for place, reason in found.dead_letters:
        typer.echo(f"{place}: would be a dead letter: {reason}", err=True)
    if found.offset is None:
        typer.echo("no row waits", err=True)
