"""``ha-engine publish``: send a file of events, with progress, and always report the acked rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ha_engine.client.files import Plan, Sending

URL = "http://127.0.0.1:8080"


def publish(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    file: Annotated[
        str, typer.Argument(help="NDJSON, CSV or Parquet file; - reads standard input.")
    ],
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url", envvar="HA_ENGINE_URL", help=f"A node, repeatable.  [default: {URL}]"
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="auto (by the file's name), ndjson, csv or parquet.")
    ] = "auto",
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows of one request.")] = 1_000,
    producer_id: Annotated[
        str | None,
        typer.Option(
            help="Producer's id; with it, a second run of the same file stores no row twice."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Maximum rows per second; 0: no limit.")] = 0,
    in_flight: Annotated[
        int,
        typer.Option(
            min=1,
            max=32,
            help="Maximum number of unanswered requests; above 1, a retry may change the order of "
            "rows.",
        ),
    ] = 1,
    deadline: Annotated[
        float, typer.Option(min=0, help="Seconds after which the retries of a request end.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Send the events of FILE to STREAM, and wait until all are acked.

    Example: ha-engine publish departures flights.parquet --producer-id loader --json
    """
    from ha_engine.client.files import Plan, send_file

    path = None if file == "-" else Path(file)
    plan = Plan(
        stream, path, url or [URL], form, batch_rows, producer_id, rate, in_flight, deadline
    )
    with _progress(plan, shown=sys.stderr.isatty() and not as_json) as on_progress:
        sending = send_file(plan, on_progress)
    typer.echo(json.dumps(sending.tree()) if as_json else sending.sentence())
    if sending.error is not None:
        typer.echo(f"ha-engine: {sending.error}", err=True)
        raise typer.Exit(sending.exit_code)


@contextmanager
def _progress(plan: Plan, *, shown: bool) -> Iterator[Callable[[Sending, int], None] | None]:
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    size = plan.path.stat().st_size if plan.path is not None and plan.path.exists() else None
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("connecting", total=size)

        def show(sending: Sending, bytes_read: int) -> None:
            text = f"{sending.acked:,} rows acked, {sending.rows_per_second:,.0f} rows/s"
            progress.update(task, description=text, completed=bytes_read)

        yield show
