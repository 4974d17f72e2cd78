"""``ha-engine status``, ``ha-engine switchover`` and ``ha-engine query``: requests to a node."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ha_engine.cli.formats import Format, FormatOption, JsonOption, show

UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="HA_ENGINE_URL", help="HTTP address of a node."),
]
LOCAL = "http://127.0.0.1:8080"

query_app = typer.Typer(
    help="Act on one query of a running node.\n\nExample: ha-engine query retry delays",
    no_args_is_help=True,
)


def status(
    url: UrlOption = LOCAL,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", "-w", min=0.1, metavar="SECONDS", help="Repeat every SECONDS."),
    ] = None,
) -> None:
    """Show the nodes of the group, and lease, journal and queries of the node at --url.

    Any node of the group can show all nodes. JSON and YAML contain the answer of GET /v1/status,
    with the answer of GET /v1/cluster below 'cluster'.

    Example: ha-engine status -w 2
    """
    output = "json" if as_json else output
    if watch is None:
        _show(url, output)
    while watch is not None:
        _show_if_it_answers(url, output)
        time.sleep(watch)


def _show_if_it_answers(url: str, output: Format) -> None:
    """Show the status, or print an error if the node does not answer.

    The command then continues, because the node may start again.
    """
    from ha_engine.errors import NodeUnreachable

    try:
        _show(url, output, is_watched=True)
    except NodeUnreachable as error:
        typer.echo(f"ha-engine: {error}", err=True)


def _show(url: str, output: Format, *, is_watched: bool = False) -> None:
    from ha_engine.client.admin import fetch_cluster, fetch_status

    status, cluster = fetch_status(url), fetch_cluster(url)
    tree = {**status, "cluster": cluster}
    show(tree, output, False, lambda: _print_tables(status, cluster, is_watched))


def _print_tables(status: dict[str, Any], cluster: dict[str, Any], is_watched: bool) -> None:
    from rich.console import Console

    from ha_engine.cli.cluster_table import cluster_table
    from ha_engine.cli.status_table import node_table, query_table

    console = Console()
    if is_watched and console.is_terminal:
        console.clear()
    pair = [cluster_table(cluster)] if len(cluster["nodes"]) > 1 else []
    console.print(*pair, node_table(status), query_table(status))


def switchover(
    to: Annotated[
        str | None, typer.Option("--to", help="Node that takes over; by default any that can.")
    ] = None,
    url: UrlOption = LOCAL,
    by: Annotated[str, typer.Option("--by", help="Name of the operator; recorded.")] = "operator",
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until the node is ready.")
    ] = 5.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Make another node the active, with a short pause and without loss of events.

    You may send the command to any node of the group. The new active must be in sync and warm.

    Example: ha-engine switchover --to node-b
    """
    from ha_engine.client.switchover import await_switchover

    seconds, successor = await_switchover(url, to, by, wait)
    sentence = f"{successor} became the active {seconds:.2f} s after the call"
    tree = {"active": successor, "seconds": round(seconds, 3)}
    show(tree, output, as_json, lambda: typer.echo(sentence))


@query_app.command()
def skip(
    query: Annotated[str, typer.Argument(help="Name of a query that is FAILED.")],
    url: UrlOption = LOCAL,
    by: Annotated[str, typer.Option("--by", help="Name of the operator; recorded.")] = "operator",
) -> None:
    """Skip the batch at which a query failed, and let the query continue after it.

    The events of the skipped batch stay in the journal, but the query's result lacks them. The
    journal records the skip.

    Example: ha-engine query skip delays --by alice
    """
    from ha_engine.client.admin import skip_batch

    skip_batch(url, query, by)
    typer.echo(f"{query} continues after the skipped batch")


@query_app.command()
def retry(
    query: Annotated[str, typer.Argument(help="Name of a query that is FAILED.")],
    url: UrlOption = LOCAL,
) -> None:
    """Let a FAILED query try its batch again, after you corrected the cause of the failure.

    Nothing is lost: if the batch fails again, the query is FAILED again.

    Example: ha-engine query retry delays
    """
    from ha_engine.client.admin import retry_query

    retry_query(url, query)
    typer.echo(f"{query} tries its batch again")


@query_app.command()
def rescale(
    query: Annotated[str, typer.Argument(help="Name of a query.")],
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Number of partitions of the query's state.")
    ],
    url: UrlOption = LOCAL,
) -> None:
    """Change the number of partitions of a query's state, while the query keeps its state.

    At most so many tasks work on the state. Both nodes change the number after the same batch, and
    the query pauses meanwhile for some seconds. Needs query.state_store: rocksdb.

    Example: ha-engine query rescale delays --partitions 16
    """
    from ha_engine.client.admin import rescale_query

    rescale_query(url, query, partitions)
    typer.echo(f"{query} continues with {partitions} state partitions after its present batch")
