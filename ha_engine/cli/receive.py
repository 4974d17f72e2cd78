"""``ha-engine receive``: one receiver, in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ha_engine.cli.config import ConfigPath


def receive(
    path: ConfigPath = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the config and the application, start nothing.")
    ] = False,
) -> None:
    """Take events for streams whose log is a Kafka topic, and write them to the topic.

    A receiver needs the application file, and no disk, database or Spark. Any number of receivers
    may run behind a load balancer, which asks GET /readiness. The config file has the sections
    application, http, ingest, access, receive and log. On SIGTERM or Ctrl-C a receiver refuses new
    requests, answers those that it has taken, and ends.

    Example: ha-engine receive --config /etc/ha-engine/receiver.yaml
    """
    from ha_engine.receiver import process

    if check:
        streams = process.check(path, os.environ)
        typer.echo(f"OK: takes events of {', '.join(streams)}")
    else:
        process.run(path, os.environ)
