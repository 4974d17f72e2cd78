"""``ha-engine query compare``, ``promote`` and ``discard``, beside the commands of ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ha_engine.cli.app_deploy import ByOption, WaitOption, ask_and_wait
from ha_engine.cli.formats import FormatOption, JsonOption, console_of_tables, show
from ha_engine.cli.status import LOCAL, UrlOption, query_app

__all__ = ["query_app"]

QueryArgument = Annotated[str, typer.Argument(help="Name of the live query.")]


@query_app.command()
def compare(
    query: QueryArgument,
    batches: Annotated[
        int, typer.Option("--batches", min=1, max=100, help="Most batches to compare.")
    ] = 20,
    rows: Annotated[int, typer.Option("--rows", min=0, max=100, help="Most example rows.")] = 5,
    url: UrlOption = LOCAL,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Compare the newest batches of a query with those of its shadow.

    The node at --url compares what it has. Rows are compared as multisets, batch by batch, so a row
    that moves to another batch counts twice.

    Example: ha-engine query compare delays --batches 50
    """
    from ha_engine.client.admin import compare_shadow

    found = compare_shadow(url, query, batches, rows)
    show(found, output, as_json, lambda: _print(found))


def _print(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    console = console_of_tables()
    if found["note"]:
        console.print(found["note"], markup=False)
    if not found["batches"]:
        return
    names = ("batch", "live", "shadow", "only live", "only shadow")
    table = Table(*names, box=None)
    total = {**found["total"], "number": "all"}
    for one in (*found["batches"], total):
        keys = ("number", "live", "shadow", "only_live", "only_shadow")
        table.add_row(*(str(one[key]) for key in keys))
    console.print(table)
    for side in ("live", "shadow"):
        for row in found[f"{side}_rows"]:
            console.print(f"only {side}: {row}", markup=False)


@query_app.command()
def promote(
    query: QueryArgument,
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Let the shadow of a query take its place, without loss or repeat of a batch.

    The nodes restart one after the other, while events are taken. Each sink gets the batches that
    it lacks from the new code, with the state that the shadow has built.

    Example: ha-engine query promote delays
    """
    _order(query, "promote", url, by, wait, output, as_json)


@query_app.command()
def discard(
    query: QueryArgument,
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """End the shadow of a query, and delete its state and its output on every node.

    Example: ha-engine query discard delays
    """
    _order(query, "discard", url, by, wait, output, as_json)


def _order(
    query: str, what: str, url: str, by: str, wait: float, output: Any, as_json: bool
) -> None:
    from ha_engine.client.admin import ask_shadow

    ask_and_wait(url, lambda node: ask_shadow(node, query, what, by), wait, output, as_json)
