"""The program of the node process.

    python -m ha_engine.node --config FILE --process UUID

The supervisor starts the node process. A node process that an operator starts by hand works too,
but nothing starts Spark. The program runs all checks before it imports the stages, so the
supervisor can start Spark during the imports.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import traceback
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ha_engine.errors import EngineError, sentence_of
from ha_engine.imports import gc_paused
from ha_engine.system.process_group import die_with_parent

with gc_paused():
    from ha_engine.config import Config
    from ha_engine.node.startup import check_place, read_files, supervisor_settings
    from ha_engine.node.supervisor_link import NoSupervisor, SupervisorLink
    from ha_engine.query.application import StreamApplication


def main() -> int:
    """Run the node process, and return an exit code that says whether a restart may help."""
    # gRPC would write lines of its own to stderr, one for each stranger that fails a TLS handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = _arguments()
    if arguments.parent:
        die_with_parent(arguments.parent)
    link = arguments.link
    supervisor = NoSupervisor() if link is None else SupervisorLink(socket.socket(fileno=link))
    with ExitStack() as leaving:
        try:
            config, application = read_files(arguments.config)
            earlier = check_place(config)
            supervisor.send("settings", supervisor_settings(config, application))
            config = _with_database(config, supervisor, leaving)
        except Exception as error:
            return _complain(error, arguments.debug)
        return _serve(config, application, supervisor, arguments, earlier)


def _with_database(
    config: Config, supervisor: NoSupervisor | SupervisorLink, leaving: ExitStack
) -> Config:
    """Start an embedded database and check the schema; return the config with the database's URL.

    A database that does not answer is not an error. Raises DatabaseNotReady. With an embedded
    database, also raises ConfigError and DatabaseUnreachable.
    """
    with gc_paused():
        from ha_engine import logs
        from ha_engine.node.database import require_schema, with_embedded

    logs.configure(config.log, node=config.node.id, process="node")
    config = leaving.enter_context(with_embedded(config))
    supervisor.send("database", _database_settings(config))
    require_schema(config)
    return config


def _database_settings(config: Config) -> dict[str, object]:
    """The settings with which ``lease_release`` reaches the lease row."""
    return {
        "url": config.database.url.get_secret_value(),
        "schema": config.database.schema_name,
        "connect_timeout": config.database.connect_timeout,
        "db_timeout": config.lease.db_timeout,
        "group": config.group,
        "ttl": config.lease.ttl,
    }


def _complain(error: Exception, debug: bool) -> int:
    """Print ``error`` as the command line prints errors, because an operator may have started the
    node."""
    if debug:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"ha-engine: {sentence_of(error)}\n")
    return error.exit_code if isinstance(error, EngineError) else EngineError.exit_code


def _serve(
    config: Config,
    application: StreamApplication,
    supervisor: NoSupervisor | SupervisorLink,
    arguments: argparse.Namespace,
    earlier: str | None,
) -> int:
    with gc_paused():
        import structlog
        import uvloop

        import ha_engine.node.node  # noqa: F401

    try:
        supervisor.await_living()
        uvloop.run(_main(config, application, supervisor, arguments, earlier))
    except EngineError as error:
        structlog.get_logger(__name__).error("the node process ends", reason=str(error))
        return error.exit_code
    return 0


async def _main(
    config: Config,
    application: StreamApplication,
    supervisor: NoSupervisor | SupervisorLink,
    arguments: argparse.Namespace,
    earlier: str | None,
) -> None:
    from ha_engine.config.load import load_config
    from ha_engine.node.node import Node
    from ha_engine.system.systemd import ServiceManager

    read = partial(load_config, arguments.config, os.environ)
    service = ServiceManager(os.environ)
    node = Node(config, application, read, arguments.process, supervisor, service)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    await node.run(earlier)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ha_engine.node", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--process", default=str(uuid.uuid4()))
    parser.add_argument(
        "--parent", type=int, help="end this process when the process with this pid ends"
    )
    parser.add_argument("--link", type=int, help="file descriptor of the socket to the supervisor")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
