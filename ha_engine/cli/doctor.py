"""``ha-engine doctor``: check everything that a node needs, before and after it runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from ha_engine.doctor import Result

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def doctor(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Check this host, its database and its peers, and print one line for each check.

    Run the command on a host before you start a node, and whenever something fails. The command
    changes nothing, and does not disturb a running node. Below each warning and each failure stands
    what to do. The exit code is 1 if a check failed; a warning is no failure.

    Example: ha-engine doctor --config engine.yaml
    """
    from ha_engine.config import LogConfig
    from ha_engine.doctor import examine
    from ha_engine.doctor.plan import planned
    from ha_engine.logs import configure

    if path is not None and not path.exists():
        raise typer.BadParameter(
            f"{path} does not exist; name a YAML file or a directory of them",
            param_hint="--config",
        )
    # A check reports what it finds itself, so the log of the engine's modules would repeat it.
    configure(LogConfig(level="error"), node="doctor", process="")
    checks, results = planned(path, os.environ), []
    width = max(len(check.name) for check in checks)
    is_pretty = output == "pretty" and not as_json
    with _progress() as say:
        for result in examine(checks, say):
            results.append(result)
            if is_pretty:
                _print(result, width)
    states = Counter(result.finding.state.value for result in results)
    summary = ", ".join(f"{states[state]} {state}" for state in _STYLES)
    show([r.to_json() for r in results], output, as_json, lambda: typer.echo(f"\n{summary}"))
    if states["failed"]:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[str, str], None]]:
    """Yield a function that shows the present check on a terminal, until the end of the block."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _name, _progress: None
        return
    with console.status("") as status:
        yield lambda name, progress: status.update(" ".join((name, progress)))


def _print(result: Result, width: int) -> None:
    from rich.console import Console
    from rich.text import Text

    found, state = result.finding, result.finding.state.value
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        Text(f"{state:<8}", _STYLES[state]), Text(f"{result.check:<{width}}  {found.text}")
    )
    if found.remedy:
        console.print(Text(f"{'':<{width + 11}}{found.remedy}"))
