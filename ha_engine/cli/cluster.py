"""``ha-engine cluster``: check the Spark cluster and the Kafka topics before a node uses them."""

from __future__ import annotations

import os

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.doctor import run_checks
from ha_engine.cli.formats import FormatOption, JsonOption

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _noun() -> None:
    """Check a Spark cluster and the Kafka topics of streams.

    Example: ha-engine cluster check --config engine.yaml
    """


@app.command()
def check(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Check what the config's cluster and Kafka topics lack, and print one line for each check.

    Run the command before a node uses a cluster, with the config that the node will have. It starts
    a short Spark application with the executors of the config, and changes nothing that runs. Below
    each warning and each failure stands what to do. The exit code is 1 if a check failed.

    Example: ha-engine cluster check --config engine.yaml
    """
    from ha_engine.doctor.cluster import planned_cluster

    run_checks(lambda: planned_cluster(path, os.environ), path, output, as_json)
