"""``ha-engine run``: one node, in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.imports import uncollected


def run(path: ConfigPath = None) -> None:
    """Run this node: supervisor, node process and Spark.

    Stops gracefully on SIGTERM and Ctrl-C, and gives up the lease first. Reads the config again on
    SIGHUP; the log and 'ha-engine status' say what needs a restart.

    Example: ha-engine run --config /etc/ha-engine/ha-engine.yaml
    """
    # The supervisor forks only to exec at once: gRPC's fork handlers would do nothing but log.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    # NumPy comes with Arrow into every process: at its import as many threads of BLAS as there are
    # cores would wait in a spin, at a time when Java wants the cores.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with uncollected():
        from ha_engine.launch import run as run_node

    raise typer.Exit(run_node(path))
