"""``ha-engine journal``: show, verify and export a node's journal; never change it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from rich.progress import Progress

    from ha_engine.journal.inspection import Report
    from ha_engine.types import Record

app = typer.Typer(
    help="Look at a journal, verify it, and export its events.\n\n"
    "Example: ha-engine journal verify var/node-a",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A node's data directory, or its journal directory.")
]


@app.command()
def inspect(
    path: Directory,
    records: Annotated[
        int, typer.Option("--records", min=0, metavar="N", help="Show the last N records too.")
    ] = 0,
    oldest: Annotated[bool, typer.Option("--oldest", help="Show the first N records.")] = False,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """List the segments, and some records without their payload.

    Example: ha-engine journal inspect var/node-a --records 10
    """
    from ha_engine.journal.inspection import newest_records, oldest_records, survey

    report = survey(_directory(path), payloads=False)
    shown = (oldest_records if oldest else newest_records)(report, records)
    show(_tree(report, shown), output, as_json, lambda: _print_tables(report, shown))
    if report.damage is not None:
        raise report.damage


@app.command()
def verify(path: Directory, output: FormatOption = "pretty", as_json: JsonOption = False) -> None:
    """Check every checksum and the order of all records of a journal.

    If the journal is damaged, print the file and the offset of the damage, and exit with code 1.

    Example: ha-engine journal verify var/node-a
    """
    from ha_engine.journal.inspection import survey
    from ha_engine.journal.segment import segment_paths

    directory = _directory(path)
    with _progress() as progress:
        task = progress.add_task("verifying", total=len(segment_paths(directory)))
        report = survey(directory, on_segment=lambda _: progress.advance(task))
    show(_tree(report, []), output, as_json, lambda: _print_verdict(report))
    if report.damage is not None:
        raise report.damage


@app.command()
def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A node's data directory, or a file given-up.*.frames in it."
        ),
    ],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream of the events.")],
    application: Annotated[
        Path,
        typer.Option("--application", "-a", help="The application, which describes the stream."),
    ],
    parquet: Annotated[
        Path | None,
        typer.Option(help="Write this Parquet file, which 'publish' sends without a change."),
    ] = None,
) -> None:
    """Print the events of a stream as JSON, one a line, in the order of the journal.

    A node that gave up records in a forced failover keeps them in a file beside its journal. Look
    at the events in that file, and send again what is still wanted, from a Parquet file.

    Example: ha-engine journal export given-up.3.81-3.97.frames departures -a app.yaml
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ha_engine.formats.json_lines import json_lines
    from ha_engine.journal.inspection import stored_events
    from ha_engine.query.application import load_application

    streams = load_application(application).streams
    if stream not in streams:
        raise typer.BadParameter(f"{application} has {', '.join(streams)}, but no {stream}")
    schema = streams[stream].arrow_schema
    records = stored_events(path if path.is_file() else _directory(path), stream)
    batches = (pa.ipc.read_record_batch(record.payload, schema) for record in records)
    if parquet is None:
        for batch in batches:
            typer.echo(json_lines(pa.Table.from_batches([batch])), nl=False)
        return
    rows = 0
    with pq.ParquetWriter(parquet, schema) as file:
        for batch in batches:
            file.write_batch(batch)
            rows += batch.num_rows
    typer.echo(f"{rows} events written to {parquet}")


def _print_verdict(report: Report) -> None:
    """Print that the journal is undamaged. Print nothing about a damaged one: the caller raises
    the damage as an error."""
    if report.damage is None:
        _print_torn(report)
        typer.echo(f"OK: {report.records} records, {report.size_bytes} bytes")


def _directory(path: Path) -> Path:
    from ha_engine.journal.inspection import find_directory

    directory = find_directory(path)
    if directory is None:
        raise typer.BadParameter(
            f"{path} has no journal; name the data directory of a node (node.data_dir)"
        )
    return directory


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True)


def _tree(report: Report, records: list[Record]) -> dict[str, Any]:
    from ha_engine.journal.inspection import record_tree, report_tree

    return report_tree(report) | {"shown": [record_tree(record) for record in records]}


def _print_tables(report: Report, records: list[Record]) -> None:
    typer.echo(f"journal {report.journal_id} of group {report.group} in {report.directory}")
    segments = [
        (one.path.name, str(one.first), str(one.last or "-"), str(one.records), str(one.size_bytes))
        for one in report.segments
    ]
    _print_table(("segment", "first", "last", "records", "bytes"), segments)
    if records:
        shown = [(str(one.position), str(one.committed), str(one.body)) for one in records]
        _print_table(("position", "committed", "record"), shown)
    epochs = ", ".join(map(str, report.epochs)) or "none"
    typer.echo(f"epochs begin at: {epochs}")
    _print_torn(report)


def _print_torn(report: Report) -> None:
    if report.torn is not None:
        typer.echo(f"torn tail: {report.torn}; the node removes it at its next start")


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles, box=SIMPLE)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
