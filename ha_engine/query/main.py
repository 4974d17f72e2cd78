"""The query process: ``python -m ha_engine.query.main``.

It starts Spark, asks the node over its socket what to run, and runs it until the node is done with
it. It knows no lease, peer, database or sink.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import structlog

from ha_engine.errors import EngineError, QueryProcessFailed
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoints import mark_clean
from ha_engine.query.class_archive import ClassArchive, NoArchive
from ha_engine.query.lifeline import ProcessId, end_with_parent, end_without
from ha_engine.query.link import (
    Address,
    NodeLink,
    Superseded,
    is_refusal,
    open_channel,
)
from ha_engine.query.reports import Reports
from ha_engine.query.runner import Directories, QueryRunner
from ha_engine.query.session import SparkSettings, installation_of, start_spark
from ha_engine.query.start_deadline import StartDeadline
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1.local_pb2_grpc import LocalStub

log = structlog.get_logger(__name__)

STOP_SECONDS_MAX = 3.0
HALT_SECONDS_MAX = 1.0
ATTEND_AGAIN_SECONDS = 0.2
FAILED_EXIT_CODE = 1
SCRATCH = ".scratch"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says. The JSON has ``query`` (as in the config, durations and sizes
    plain numbers), ``checkpoint_dir``, ``outbox_dir`` and ``classes_dir``. ``--parent`` is the text
    of a ProcessId: this process ends with that one. ``classes`` is where the class archive lies."""

    address: Address
    application: Path
    spark: SparkSettings
    directories: Directories
    read_parallelism: int
    start_seconds_max: float
    nice: int
    classes: Path | None

    @classmethod
    def parse(cls, arguments: list[str]) -> Settings:
        parser = argparse.ArgumentParser(prog="ha_engine.query.main")
        for name in ("socket", "incarnation", "application", "config-json"):
            parser.add_argument(f"--{name}", required=True)
        parser.add_argument("--parent")
        given = parser.parse_args(arguments)
        config = json.loads(given.config_json)
        return cls(
            Address(given.socket, given.incarnation),
            Path(given.application),
            _spark_settings(config["query"], Path(config["checkpoint_dir"])),
            Directories(Path(config["checkpoint_dir"]), Path(config["outbox_dir"])),
            config["query"]["read_parallelism"],
            config["query"]["start_timeout"],
            config["query"]["nice"],
            Path(config["classes_dir"]) if config["query"]["class_archive"] else None,
        )


def _parent(arguments: list[str]) -> str | None:
    """Asked before all else: nothing may be started for a parent that is gone."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--parent")
    given: str | None = parser.parse_known_args(arguments)[0].parent
    return given


def _spark_settings(query: dict[str, Any], checkpoints: Path) -> SparkSettings:
    """A query's name never starts with a dot, so the scratch directory is none of a query's."""
    known = SparkSettings.__dataclass_fields__
    given = {key: value for key, value in query.items() if key in known}
    return SparkSettings(**given, scratch=(checkpoints / SCRATCH).resolve())


def _class_archive(settings: Settings) -> ClassArchive | NoArchive:
    if settings.classes is None:
        return NoArchive()
    return ClassArchive(settings.classes, installation_of(settings.spark))


class Attendance:
    """The stream of commands, opened again for as long as the node is away and not ended."""

    def __init__(self, address: Address, channel: grpc.Channel) -> None:
        self._stub = LocalStub(channel)
        self._request = pb.AttendRequest(incarnation=address.incarnation)
        self._ended = threading.Event()
        self._call: Any = None

    def commands(self) -> Iterator[pb.QueryCommand]:
        """Ends when the node ends the stream or ``end`` is called. Raises Superseded."""
        while not self._ended.is_set():
            self._call = call = self._stub.Attend(self._request)
            if self._ended.is_set():
                return
            try:
                yield from call
                return
            except grpc.RpcError as error:
                if is_refusal(error):
                    raise Superseded("the node refused this query process") from error
            self._ended.wait(ATTEND_AGAIN_SECONDS)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        self._ended.set()
        if self._call is not None:
            self._call.cancel()


class QueryProcess:
    """Everything that lives as long as the process."""

    def __init__(self, settings: Settings) -> None:
        versions = ApplicationVersions(settings.application)
        self._channel = open_channel(settings.address)
        deadline = StartDeadline(settings.start_seconds_max)
        self._attendance = Attendance(settings.address, self._channel)
        self._failure: BaseException | None = None
        link = NodeLink(settings.address, channel=self._channel)
        self._classes = _class_archive(settings)
        signal.signal(signal.SIGTERM, lambda *_: self._asked_to_end_at_once())
        options = self._classes.java_options()
        self._spark = start_spark(replace(settings.spark, java_options=options), versions.directory)
        self._classes.spark_started()
        deadline.spark_started()
        self._jvm = self._spark.sparkContext._gateway.proc
        self._checkpoints = settings.directories.checkpoints
        reports = Reports(link, self._fail)
        self._watch_jvm()
        self._listen(reports)
        self._runner = QueryRunner(
            self._spark,
            versions,
            link,
            reports,
            settings.directories,
            self._fail,
            read_parallelism=settings.read_parallelism,
        )

    def serve(self) -> int:
        """Run what the node commands; the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._asked_to_end())
        try:
            for command in self._attendance.commands():
                self._obey(command)
        except Superseded as error:
            self._fail(error)
        self._attendance.end()
        failure = self._failure
        _exit_at_the_latest(_exit_code(failure))
        if failure is None:
            self._leave_checkpoints_whole()
        else:
            log.error("query process ends", reason=str(failure))
        self._channel.close()
        return _exit_code(failure)

    def _asked_to_end_at_once(self) -> None:
        """While Spark starts: nothing is open yet, and the class archive is not to blame."""
        self._classes.spark_started()
        os._exit(0)

    def _asked_to_end(self) -> None:
        _exit_at_the_latest(0)
        self._attendance.end()

    def _obey(self, command: pb.QueryCommand) -> None:
        match command.WhichOneof("command"):
            case "run":
                self._runner.run(command.run)
            case "halt":
                self._runner.halt(command.halt.query)

    def _watch_jvm(self) -> None:
        gone = QueryProcessFailed("Spark's JVM is gone; the query process must start anew")
        end_with_parent(ProcessId.of(self._jvm.pid), end=lambda: self._fail(gone))

    def _listen(self, reports: Reports) -> None:
        from ha_engine.query.progress import ProgressListener

        ended = partial(self._classes.batch_ended, self._jvm.pid)
        self._spark.streams.addListener(ProgressListener(reports, ended))

    def _fail(self, error: BaseException) -> None:
        """The first reason counts; what fails after it, or while this process ends, follows it."""
        if not self._attendance.has_ended:
            self._failure = error
            self._attendance.end()

    def _leave_checkpoints_whole(self) -> None:
        """A batch may wait for a node that is gone: the queries get a moment, and then the JVM is
        killed, which their checkpoints bear as long as the host lives."""
        halting = threading.Thread(target=self._halt, name="halt all", daemon=True)
        halting.start()
        halting.join(HALT_SECONDS_MAX)
        self._jvm.kill()
        self._jvm.wait()
        mark_clean(self._checkpoints)

    def _halt(self) -> None:
        try:
            self._runner.halt_all()
        except Exception as error:
            log.debug("queries not halted", reason=str(error))


def _exit_code(failure: BaseException | None) -> int:
    match failure:
        case None:
            return 0
        case EngineError():
            return failure.exit_code
        case _:
            return FAILED_EXIT_CODE


def _exit_at_the_latest(code: int) -> None:
    """Checkpoints that are not marked clean by then cost a replay, if the host loses power next."""
    timer = threading.Timer(STOP_SECONDS_MAX, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _give_way(nice: int) -> None:
    """Of this process and all that it starts."""
    os.nice(nice)
    # Where the kernel groups processes by session, that counts within a session only.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")


def main(arguments: list[str]) -> int:
    """Exit code 0 when the node wanted the end, else that of the error, told in one sentence."""
    end_without(_parent(arguments))
    # Spark's launcher forks while gRPC's threads run; its fork handlers then break the child or us.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    try:
        settings = Settings.parse(arguments)
        _give_way(settings.nice)
        return QueryProcess(settings).serve()
    except EngineError as error:
        log.error("query process ends", reason=str(error))
        return error.exit_code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    # Threads of gRPC and py4j still run; one that meets the interpreter's end aborts the process,
    # and then a signal is told as the reason of its death.
    os._exit(exit_code)
