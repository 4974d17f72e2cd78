"""The node process: from its arguments to its exit code.

    python -m ha_engine.node --config FILE --process UUID

The supervisor starts it; by hand it works too, but nobody then starts Spark for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import uuid
from functools import partial
from pathlib import Path

import structlog
import uvloop

from ha_engine.errors import EngineError
from ha_engine.imports import uncollected

with uncollected():
    from ha_engine import logs
    from ha_engine.composition import Node
    from ha_engine.config import Config
    from ha_engine.config.load import load_config
    from ha_engine.notify import ServiceManager
    from ha_engine.sessions import die_with_parent

log = structlog.get_logger(__name__)


async def _main(config: Config, arguments: argparse.Namespace) -> None:
    read = partial(load_config, arguments.config, os.environ)
    node = Node(config, read, arguments.process, arguments.living, ServiceManager(os.environ))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    await node.run()


def main() -> int:
    """Entry of the node process; the exit code tells the supervisor whether a restart is of use."""
    parser = argparse.ArgumentParser(prog="ha_engine.node", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--process", default=str(uuid.uuid4()))
    parser.add_argument("--parent", type=int, help="pid without which this process must end")
    parser.add_argument("--living", help="incarnation of a query process that still runs")
    arguments = parser.parse_args()
    if arguments.parent:
        die_with_parent(arguments.parent)
    try:
        config = load_config(arguments.config, os.environ)
        logs.configure(config.log, node=config.node.id, process="node")
        uvloop.run(_main(config, arguments))
    except EngineError as error:
        log.error("the node process ends", reason=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
