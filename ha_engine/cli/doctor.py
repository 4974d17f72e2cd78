"""``ha-engine doctor``: check everything that a node needs, before and after it runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from rich.status import Status

    from ha_engine.doctor import Result
    from ha_engine.doctor.check import Check

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
    from ha_engine.doctor.plan import planned

    run_checks(lambda: nullcontext(planned(path, os.environ)), path, output, as_json)


def run_checks(
    plan: Callable[[], AbstractContextManager[list[Check]]],
    path: Path | None,
    output: FormatOption,
    as_json: bool,
) -> None:
    """Run the checks of ``plan``, and print one line for each. Exit with 1 if a check failed."""
    from ha_engine.config import LogConfig
    from ha_engine.doctor import examine
    from ha_engine.logs import configure

    if path is not None and not path.exists():
        raise typer.BadParameter(
            f"{path} does not exist; name a YAML file or a directory of them",
            param_hint="--config",
        )
    # A check reports what it finds itself, so the log of the engine's modules would repeat it.
    configure(LogConfig(level="error"), node="doctor", process="")
    results = []
    is_pretty = output == "pretty" and not as_json
    with plan() as checks, _progress() as progress:
        width = max(len(check.name) for check in checks)
        for result in examine(checks, progress.say):
            progress.clear()
            results.append(result)
            if is_pretty:
                _print(result, width)
    states = Counter(result.finding.state.value for result in results)
    summary = ", ".join(f"{states[state]} {state}" for state in _STYLES)
    show([r.to_json() for r in results], output, as_json, lambda: typer.echo(f"\n{summary}"))
    if states["failed"]:
        raise typer.Exit(1)


class _Progress:
    """Shows on standard error which check runs, if standard error is a terminal."""

    def __init__(self, status: Status | None) -> None:
        self._status = status

    def say(self, check: str, progress: str) -> None:
        if self._status is not None:
            self._status.update(f"{check} {progress}")
            self._status.start()

    def clear(self) -> None:
        """Remove the line of the progress, so that a finding does not continue that line."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def _progress() -> Iterator[_Progress]:
    from rich.console import Console

    console = Console(stderr=True)
    shown = _Progress(console.status("") if console.is_terminal else None)
    try:
        yield shown
    finally:
        shown.clear()


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
