"""All commands below ``ha-engine``."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Annotated

import typer

from ha_engine import __version__
from ha_engine.cli import (
    app,
    config,
    db,
    demo,
    failover,
    journal,
    lease,
    publish,
    reinit,
    run,
    snapshot,
    status,
)
from ha_engine.errors import EngineError, sentence_of

root = typer.Typer(
    name="ha-engine",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass
class Invocation:
    """What the options before the command asked for."""

    debug: bool = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ha-engine {__version__}")
        raise typer.Exit


@root.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Keep a PySpark streaming query alive on two machines.

    Example: ha-engine run --config engine.yaml
    """
    context.ensure_object(Invocation).debug = debug


root.command("run")(run.run)
root.command("status")(status.status)
root.command("switchover")(status.switchover)
root.command("failover")(failover.failover)
root.command("pause")(lease.pause)
root.command("resume")(lease.resume)
root.command("history")(lease.history)
root.command("reinit")(reinit.reinit)
root.command("publish")(publish.publish)
root.command("demo")(demo.demo)
root.add_typer(app.app, name="app")
root.add_typer(status.query_app, name="query")
root.add_typer(config.app, name="config")
root.add_typer(db.app, name="db")
root.add_typer(journal.app, name="journal")
root.add_typer(snapshot.app, name="snapshot")


def invoke(arguments: list[str]) -> int:
    """Run one command; its exit code."""
    invocation = Invocation()
    command = typer.main.get_command(root)
    try:
        command.main(arguments, prog_name="ha-engine", obj=invocation)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        return _tell(error, invocation)
    return 0


def _tell(error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        traceback.print_exception(error)
    else:
        typer.echo(f"ha-engine: {sentence_of(error)}", err=True)
    return error.exit_code if isinstance(error, EngineError) else EngineError.exit_code
