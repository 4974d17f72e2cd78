"""``ha-engine app``: check a stream application before it runs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from rich.console import Console

    from ha_engine.query.check import ApplicationReport, QueryReport

app = typer.Typer(no_args_is_help=True)

BAD_EXIT_CODE = 2


@app.callback()
def _noun() -> None:
    """Check a stream application.

    Example: ha-engine app check flights.yaml
    """


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The application's YAML file.")],
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Plan every query as a node would, and say what each yields and what is wrong.

    Exit code 0 when all can run, 2 when one cannot. It starts Spark, which takes some seconds.

    Example: ha-engine app check flights.yaml
    """
    from ha_engine.query.application import load_application
    from ha_engine.query.check import check_application
    from ha_engine.query.session import SparkSettings, check_java, start_spark

    check_java()
    application = load_application(file)
    with TemporaryDirectory(prefix="ha-engine-") as scratch:
        settings = SparkSettings(master="local[1]", scratch=Path(scratch) / "spark")
        spark = start_spark(settings, application.directory)
        try:
            report = check_application(application, spark)
        finally:
            spark.stop()
    show(report.to_json(), output, as_json, lambda: _print(report))
    if not report.is_good:
        raise typer.Exit(BAD_EXIT_CODE)


def _print(report: ApplicationReport) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{report.application}[/bold]  digest {report.digest}")
    for source in report.sources:
        console.print(
            f"{source.stream} <- {source.name}: {source.type}, {source.guarantee}", markup=False
        )
    for query in report.queries:
        _print_query(console, query)
    bad = sum(query.error is not None for query in report.queries)
    console.print(f"{len(report.queries)} queries, {bad} cannot run" if bad else "all can run")


def _print_query(console: Console, query: QueryReport) -> None:
    from rich.markup import escape

    console.print(
        f"\n[bold]{query.name}[/bold]  {query.output_mode} mode of {_list(query.streams)}"
    )
    if query.error is not None:
        console.print(f"  [red]error[/red] {escape(query.error)}")
    for name, kind in query.columns:
        console.print(f"  {name:<24} {escape(kind)}")
    for sink in query.sinks:
        console.print(f"  -> {sink.name}: {sink.shown}, {sink.guarantee}", markup=False)
    for note in query.notes:
        console.print(f"  note: {note}", markup=False)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
