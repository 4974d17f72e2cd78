"""``ha-engine run``: one node, in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import sys

import typer

from ha_engine.cli.config import ConfigPath


def run(context: typer.Context, path: ConfigPath = None) -> None:
    """Run this node: supervisor, node process and Spark.

    On SIGTERM or Ctrl-C the node stops gracefully, and releases the lease first. On SIGHUP the node
    reloads the config. The log and 'ha-engine status' list the settings that need a restart.

    Example: ha-engine run --config /etc/ha-engine/ha-engine.yaml
    """
    command = [sys.executable, "-m", "ha_engine.supervisor"]
    command += ["--config", str(path)] if path else []
    command += ["--debug"] if context.obj and context.obj.debug else []
    # Replace this process: it has imported modules that the supervisor does not need.
    os.execv(sys.executable, command)  # noqa: S606 - the words of a list, without a shell
