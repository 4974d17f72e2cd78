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

    Use this command only when you cannot start any in-sync node again. The node at --url refuses
    while an in-sync node may be alive. The command refuses while another node answers whose journal
    ends later. With --confirm-fenced NODE you state that NODE is off. Keep
    NODE off until the command ends. After its next start NODE follows the new active, and moves the
    records that only NODE had to a file beside its journal.

    Example: ha-engine failover --force --confirm-fenced node-a --url http://node-b:8080
    """
    from ha_engine.client.admin import fetch_failover
    from ha_engine.client.failover import await_failover, require_no_later_journal
    from ha_engine.errors import EngineError

    if not force:
        raise typer.BadParameter(
            "a failover needs no command; use 'ha-engine switchover' to change the active without "
            "loss, or --force to give up the records that only the in-sync node has",
            param_hint="--force",
        )
    nodes = tuple(confirmed_fenced or ())
    loss = fetch_failover(url, nodes)
    typer.echo(f"{loss['node']}: {loss['may_be_lost']}", err=True)
    if loss["refusal"] is not None:
        raise EngineError(loss["refusal"])
    require_no_later_journal(url, loss["node"], loss["journal_ends"])
    if not (yes or _confirmed(loss["node"])):
        raise EngineError("the failover was not confirmed; nothing was done")
    seconds = await_failover(url, nodes, by)
    sentence = f"{loss['node']} became the active {seconds:.2f} s after the call"
    tree = {"active": loss["node"], "seconds": round(seconds, 3), "lost": loss["may_be_lost"]}
    show(tree, output, as_json, lambda: typer.echo(sentence))


def _confirmed(node: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "the command cannot ask without a terminal; add --yes", param_hint="--yes"
        )
    return typer.confirm(f"Make {node} the active and give up the records that it lacks?", err=True)
