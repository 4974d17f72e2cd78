"""The command line. Its modules contain no logic of the engine; ``root`` combines them.

``doctor``                         checks the host, the database and the peers.
``run``                            runs one node in the foreground.
``receive``                        runs one receiver in the foreground.
``observe``                        runs one observer in the foreground.
``executor``                       runs an executor in a pod that Spark made.
``status``                         has the commands ``status``, ``switchover`` and ``query``.
``failover``                       has the command ``failover --force``.
``lease``                          has the commands ``pause``, ``resume`` and ``history``.
``app``, ``config``, ``db``        have one group of commands each.
``app_test``                       has the command ``app test``.
``query``                          has the commands of ``query`` about shadows.
``app_deploy``                     has the commands of ``app`` about deployments.
``journal``, ``snapshot``          have one group of commands each.
``cluster``                        has the command ``cluster check``.
``source``                         has the command ``source peek``.
``upgrade``                        has the commands ``upgrade check``, ``prepare`` and ``verify``.
``version``                        says what this installation fits.
``publish``, ``reinit``, ``demo``  have one command each.
``cluster_table``                  makes the table of the nodes of a group.
``status_table``                   makes the tables of the status of a node.
``history_table``                  makes the table of the history of the lease.
``formats``                        prints an answer for people, or as JSON or YAML.
``transfers``                      shows the progress of a transfer of bytes on a terminal.
``database``                       opens the database for commands without a running node.

The import of a module of this package must stay cheap, because ``ha-engine --help`` imports all
modules of the package. So the commands import heavy packages (pydantic, pyarrow, sqlalchemy, grpc,
Spark, rich) inside their functions. ``ha-engine run`` imports none of the heavy packages, because
its process lives as long as the node.
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
        # The reader of the output closed the pipe. Redirect standard output to /dev/null, so that
        # the interpreter's flush at its exit does not fail.
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
