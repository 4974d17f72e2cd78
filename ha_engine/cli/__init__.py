"""The command line: one module a noun, no logic; ``root`` puts them together.

run            one node in the foreground
status         ``status``, ``switchover`` and ``query``
failover       ``failover --force``
lease          ``pause``, ``resume`` and ``history``
app, config, db, journal, snapshot   one group of commands each
publish, reinit, demo                one command each
cluster_table, status_table, history_table   what commands print for people
formats        the same as JSON or YAML
transfers      progress of bytes on a terminal
database       the database of a config, for commands that need no running node

Importing a module of this package must stay cheap, since ``ha-engine --help`` imports them all.
What is heavy (pydantic, pyarrow, sqlalchemy, grpc, Spark, rich) is imported inside the commands.
``ha-engine run`` does without any of them: the process that it becomes lives as long as the node.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 success, 1 failure, 2 usage or config error, 130 Ctrl-C."""
    code = _run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read the output has seen enough. The interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    match arguments:
        case ["run"]:
            return _supervise(os.environ.get("HA_ENGINE_CONFIG") or None)
        case ["run", "-c" | "--config", config] if not config.startswith("-"):
            return _supervise(config)
    from ha_engine.cli.root import invoke

    return invoke(arguments)


def _supervise(config: str | None) -> int:
    from ha_engine.supervisor.supervisor import run

    return run(config)
