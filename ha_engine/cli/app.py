"""``ha-engine app``: check, test and deploy a stream application."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli import app_deploy
from ha_engine.cli.app_test import run_tests
from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from rich.console import Console

    from ha_engine.node.connections import Connection
    from ha_engine.query.application import StreamApplication
    from ha_engine.query.check import ApplicationReport, QueryReport

app = typer.Typer(no_args_is_help=True)
app.command("test")(run_tests)
app.command("deploy")(app_deploy.deploy)
app.command("remove")(app_deploy.remove)
app.command("list")(app_deploy.list_applications)
app.command("history")(app_deploy.history)
app.command("diff")(app_deploy.diff)
app.command("rollback")(app_deploy.rollback)

BAD_EXIT_CODE = 2


@app.callback()
def _noun() -> None:
    """Check, test and deploy a stream application.

    Example: ha-engine app check flights.yaml
    """


@app.command()
def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="The application's YAML file, or a directory with several applications.",
        ),
    ],
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Connect to each source and sink of a plug-in too.")
    ] = False,
    group: Annotated[
        str, typer.Option(help="The group whose names the connections have, as in the config.")
    ] = "default",
    progress: Annotated[
        bool | None,
        typer.Option(
            help="Print each step to standard error; the default on a terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Plan every query as a node does, and print its output columns, or why it cannot run.

    A pattern is explained in words, and its automaton is drawn with a line for each transition.

    The exit code is 0 if all queries can run, and 2 if a query cannot run, or if a system does not
    answer with --connect. The check starts Spark once, which takes some seconds.

    Example: ha-engine app check flights.yaml --connect
    """
    began = time.monotonic()
    steps = _Steps(sys.stderr.isatty() if progress is None else progress)
    application, report = _check(file, steps)
    connections = _connect(application, group, steps) if connect else []
    seconds = time.monotonic() - began
    tree = {**report.to_json(), "seconds": round(seconds, 1)}
    if connect:
        tree["connections"] = [one.to_json() for one in connections]
    show(tree, output, as_json, lambda: _print(report, connections, seconds))
    if not report.is_good or any(one.error is not None for one in connections):
        raise typer.Exit(BAD_EXIT_CODE)


def _check(file: Path, steps: _Steps) -> tuple[StreamApplication, ApplicationReport]:
    from ha_engine.jvm import engine_jar
    from ha_engine.query.application import load_application
    from ha_engine.query.check import BRIEF_JAVA, check_application
    from ha_engine.query.session import SparkSettings, check_java, start_spark

    check_java()
    application = load_application(file)
    with TemporaryDirectory(prefix="ha-engine-") as scratch:
        steps.say("starting Spark")
        settings = SparkSettings(
            master="local[1]",
            scratch=Path(scratch) / "spark",
            java_options=BRIEF_JAVA,
            jars=(engine_jar(),) if application.has_patterns else (),
        )
        began = time.monotonic()
        spark = start_spark(settings, *application.directories)
        steps.say(f"Spark: started in {time.monotonic() - began:.1f} s")
        try:
            return application, check_application(application, spark, steps.planned)
        finally:
            spark.stop()


def _connect(application: StreamApplication, group: str, steps: _Steps) -> list[Connection]:
    from ha_engine.node.connections import check_connections

    found = []
    for one in check_connections(application, group):
        steps.say(f"{one.kind} {one.place}: {_verdict(one)}")
        found.append(one)
    return found


def _verdict(one: Connection) -> str:
    if one.error is not None:
        return one.error
    return "connected" if one.checked else f"not checked, since the type {one.type} has no check"


class _Steps:
    """Prints the progress of the check to standard error. Standard output has only the report."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def say(self, line: str) -> None:
        if self._wanted:
            typer.echo(line, err=True)

    def planned(self, query: QueryReport, seconds: float) -> None:
        verdict = "planned" if query.error is None else "refused"
        self.say(f"query {query.name}: {verdict} in {seconds:.1f} s")


def _print(report: ApplicationReport, connections: list[Connection], seconds: float) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{report.application}[/bold]  digest {report.digest}")
    for source in report.sources:
        console.print(
            f"{source.stream} <- {source.name}: {source.type}, {source.guarantee}", markup=False
        )
    for query in report.queries:
        _print_query(console, query)
    for one in connections:
        console.print(f"{one.kind} {one.place}: {_verdict(one)}", markup=False)
    bad = sum(query.error is not None for query in report.queries)
    verdict = f"{len(report.queries)} queries, {bad} cannot run" if bad else "all can run"
    console.print(f"{verdict}; checked in {seconds:.1f} s")


def _print_query(console: Console, query: QueryReport) -> None:
    from rich.markup import escape

    console.print(
        f"\n[bold]{query.name}[/bold]  {query.output_mode} mode of {_list(query.streams)}"
    )
    if query.error is not None:
        console.print(f"  [red]error[/red] {escape(query.error)}")
    for pattern in query.patterns:
        for line in (*pattern.words, "", *pattern.automaton, ""):
            console.print(f"  {line}", markup=False)
    for name, kind in query.columns:
        console.print(f"  {name:<24} {escape(kind)}")
    for sink in query.sinks:
        console.print(f"  -> {sink.name}: {sink.shown}, {sink.guarantee}", markup=False)
    for note in query.notes:
        console.print(f"  note: {note}", markup=False)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
