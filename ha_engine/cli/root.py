"""All commands below ``ha-engine``."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import typer

from ha_engine import __version__
from ha_engine.errors import EngineError, sentence_of

_COMMANDS = {
    "doctor": "doctor.doctor",
    "run": "run.run",
    "status": "status.status",
    "switchover": "status.switchover",
    "failover": "failover.failover",
    "pause": "lease.pause",
    "resume": "lease.resume",
    "history": "lease.history",
    "reinit": "reinit.reinit",
    "receive": "receive.receive",
    "observe": "observe.observe",
    "executor": "executor.executor",
    "publish": "publish.publish",
    "demo": "demo.demo",
    "app": "app.app",
    "cluster": "cluster.app",
    "source": "source.app",
    "query": "query.query_app",
    "config": "config.app",
    "db": "db.app",
    "journal": "journal.app",
    "snapshot": "snapshot.app",
    "upgrade": "upgrade.app",
    "version": "version.version",
}
"""The function or group of each command, as module.attribute, in the order of the help."""


@dataclass
class Invocation:
    """The values of the options that stand before the name of the command."""

    debug: bool = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ha-engine {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run a PySpark streaming query on two hosts, one active and one passive.

    Example: ha-engine run --config engine.yaml
    """
    context.ensure_object(Invocation).debug = debug


def program(*names: str) -> typer.Typer:
    """Build the program with the commands ``names``, by default all commands.

    A program with one command starts faster, since it imports only the module of this command.
    """
    whole = typer.Typer(
        name="ha-engine",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    whole.callback()(_options)
    for name in names or _COMMANDS:
        module, _, attribute = _COMMANDS[name].partition(".")
        found = getattr(import_module(f"ha_engine.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            whole.add_typer(found, name=name)
        else:
            whole.command(name)(found)
    return whole


def _named(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command in ``arguments``. Empty if ``arguments`` begin with no known command, since the
    program must then list or suggest all commands."""
    rest = [one for one in arguments if one != "--debug"]
    return (rest[0],) if rest and rest[0] in _COMMANDS else ()


def invoke(arguments: list[str]) -> int:
    """Run one command, and return its exit code."""
    invocation = Invocation()
    command = typer.main.get_command(program(*_named(arguments)))
    try:
        command.main(arguments, prog_name="ha-engine", obj=invocation)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        return _report(error, invocation)
    return 0


def _report(error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        traceback.print_exception(error)
    else:
        typer.echo(f"ha-engine: {sentence_of(error)}", err=True)
    return error.exit_code if isinstance(error, EngineError) else EngineError.exit_code
