"""The query process: ``python -m ha_engine.query.main``.

The query process starts Spark and runs the queries that the node process requests over its socket.
The query process has no access to the lease, the peers and the database. Only its tasks write to a
sink, if the sink has buckets.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from dataclasses import replace

import structlog

from ha_engine import logs
from ha_engine.errors import EngineError
from ha_engine.imports import gc_paused
from ha_engine.query.class_archive import AnyArchive, ClassArchive, NoArchive
from ha_engine.query.failure import one_line
from ha_engine.query.host import MemoryKills
from ha_engine.query.layout import directories_of
from ha_engine.query.parent_watchdog import end_without
from ha_engine.query.session import StartingSpark, installation_of
from ha_engine.query.settings import Settings
from ha_engine.query.start_report import STARTING_JAVA, STARTING_SPARK, StartReport
from ha_engine.query.weight import Weight

log = structlog.get_logger(__name__)


def main(arguments: list[str]) -> int:
    """Run the query process.

    Return 0 if the node process ended it, else the exit code of the logged error.
    """
    end_without(_parent(arguments))
    # Spark's launcher forks while another thread imports gRPC. During the fork of the launcher,
    # gRPC's fork handlers would break the child or this process.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    report, kills = StartReport.of(os.environ), MemoryKills()
    try:
        settings = Settings.parse(arguments)
        logs.configure(settings.log, node=settings.log.node, process="query")
        weight = Weight(settings.nice)
        weight.starting()
        return _run(settings, weight, report, kills)
    except EngineError as error:
        log.error("query process ends", reason=str(error))
        report.end(str(error))
        return error.exit_code
    except Exception as error:
        report.end(one_line(error), by_host=kills.rose())
        raise


def _run(settings: Settings, weight: Weight, report: StartReport, kills: MemoryKills) -> int:
    classes = _class_archive(settings)
    signal.signal(signal.SIGTERM, lambda *_: _asked_to_end_at_once(classes))
    options = replace(settings.spark, java_options=classes.java_options())
    report.step(STARTING_JAVA)
    starting = StartingSpark(options, *directories_of(settings.application))
    # The import of ``process`` takes long, so it runs while Java starts.
    with gc_paused():
        from ha_engine.query.process import QueryProcess

    spark = starting.session(java_started=lambda: report.step(STARTING_SPARK))
    classes.spark_started()
    return QueryProcess(settings, spark, classes, weight, report, kills).serve()


def _asked_to_end_at_once(classes: AnyArchive) -> None:
    """Exit on SIGTERM while Spark starts, when no query is open.

    A start that SIGTERM ends must not count against the class archive.
    """
    classes.spark_started()
    os._exit(0)


def _parent(arguments: list[str]) -> str | None:
    """Read ``--parent`` before all else, because nothing may start after the parent has ended."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--parent")
    given: str | None = parser.parse_known_args(arguments)[0].parent
    return given


def _class_archive(settings: Settings) -> AnyArchive:
    if settings.classes is None:
        return NoArchive()
    return ClassArchive(settings.classes, installation_of(settings.spark))


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    # Threads of gRPC and py4j still run at this point. A thread that runs during the interpreter's
    # shutdown aborts the process. After an abort, the supervisor would report a signal as the
    # reason of the query process's end.
    os._exit(exit_code)
