"""The command line: one module a noun, no logic; ``root`` puts them together.

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
    from ha_engine.supervisor import run

    return run(config)
