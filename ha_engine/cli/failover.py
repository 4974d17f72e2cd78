"""``ha-engine failover --force``: an operator's decision when no in-sync node is left."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, show
from ha_engine.cli.status import LOCAL, UrlOption


def failover(
    force: Annotated[
        bool, typer.Option("--force", help="Give up the records that this node does not have.")
    ] = False,
    confirmed_fenced: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm-fenced", metavar="NODE", help="Node that is certainly off; repeatable."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    url: UrlOption = LOCAL,
    by: Annotated[str, typer.Option("--by", help="Name of the operator; recorded.")] = "operator",
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Make the node at --url the active although it is not in sync: acked events may be lost.

    Use it only when no in-sync node can be brought back. The node refuses while one may be alive.
    With --confirm-fenced you state that such a node is off; keep it off until this is done. When it
    returns, it follows, and keeps the records that only it had beside its journal.

    Example: ha-engine failover --force --confirm-fenced node-a --url http://node-b:8080
    """
    from ha_engine.client.admin import fetch_failover
    from ha_engine.client.failover import await_failover
    from ha_engine.errors import EngineError

    if not force:
        raise typer.BadParameter(
            "a failover needs no command; use 'ha-engine switchover' to change the active without "
            "loss, or --force to give up the records that only the in-sync node has",
            param_hint="--force",
        )
    nodes = tuple(confirmed_fenced or ())
    told = fetch_failover(url, nodes)
    typer.echo(f"{told['node']}: {told['may_be_lost']}", err=True)
    if told["refusal"] is not None:
        raise EngineError(told["refusal"])
    if not (yes or _confirmed(told["node"])):
        raise EngineError("the failover was not confirmed; nothing was done")
    seconds = await_failover(url, nodes, by)
    sentence = f"{told['node']} became the active {seconds:.2f} s after the call"
    tree = {"active": told["node"], "seconds": round(seconds, 3), "lost": told["may_be_lost"]}
    show(tree, output, as_json, lambda: typer.echo(sentence))


def _confirmed(node: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask on; add --yes", param_hint="--yes")
    return typer.confirm(f"Make {node} the active and give those records up?", err=True)
