"""``ha-engine observe``: one observer, in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ha_engine.cli.config import ConfigPath


def observe(
    path: ConfigPath = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the config, start nothing.")
    ] = False,
) -> None:
    """Watch a pair from a third machine: show its state, and the newest output of its queries.

    An observer asks the nodes over HTTP, and changes nothing on them. It needs no database and no
    Spark, and goes on showing the last state while no node answers. The config file has the
    sections watch, http, access and log.

    Example: ha-engine observe --config /etc/ha-engine/observer.yaml
    """
    from ha_engine.observer import process

    if check:
        nodes = process.check(path, os.environ)
        typer.echo(f"OK: watches {', '.join(nodes)}")
    else:
        process.run(path, os.environ)
