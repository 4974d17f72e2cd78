"""The command line: one module per noun, without logic; ``root`` combines them.

run            one node in the foreground
status         ``status``, ``switchover`` and ``query``
failover       ``failover --force``
lease          ``pause``, ``resume`` and ``history``
app, config, db, journal, snapshot   one group of commands each
publish, reinit, demo                one command each
cluster_table, status_table, history_table   tables that commands print for people
formats        prints an answer for people, or as JSON or YAML
transfers      shows the progress of bytes on a terminal
database       the database of a config, for commands that need no running node

The import of a module of this package must stay cheap, because ``ha-engine --help`` imports all of
them. So the commands import heavy packages (pydantic, pyarrow, sqlalchemy, grpc, Spark, rich)
inside their functions. ``ha-engine run`` imports none of these packages, because its process lives
as long as the node.
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
        # The reader of the output closed the pipe. The interpreter must not flush into it again.
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
