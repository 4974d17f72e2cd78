"""The command line: one module a noun, no logic.

Importing a module of this package must stay cheap, since ``ha-engine --help`` imports them all:
what is heavy (pydantic, pyarrow, sqlalchemy, grpc, Spark) is imported inside the commands.
"""

from __future__ import annotations

import os
import sys
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
from ha_engine.errors import EngineError

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


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 success, 1 failure, 2 usage or config error, 130 Ctrl-C."""
    invocation = Invocation()
    code = _run(arguments, invocation)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read the output has seen enough. The interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: list[str] | None, invocation: Invocation) -> int:
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
    elif isinstance(error, EngineError):
        typer.echo(f"ha-engine: {error}", err=True)
    else:
        reason = f"{type(error).__name__}: {error}"
        typer.echo(f"ha-engine: unexpected {reason}; 'ha-engine --debug …' shows where", err=True)
    return error.exit_code if isinstance(error, EngineError) else EngineError.exit_code
