"""A real node process with a supervisor that starts no Spark: seconds instead of minutes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from ha_engine.runtime_dir import SOCKET_NAME
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1 import local_pb2_grpc as rpc
from tests.e2e.node_under_test import NodeUnderTest

ROOM = {"receive": {"max_backlog_events": 1 << 30}}
"""Where no query runs, what was sent waits for a batch for ever."""
APPLICATION = """
name: copies
streams:
  events:
    schema: {id: int not null, text: string}
queries:
  copies:
    sql: SELECT id, text FROM events
    sinks:
      - {name: table, type: postgres, table: copies, auto_create: true}
"""

NO_SPARK = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "17.0.1"' >&2 ;; *) exit 1 ;; esac
"""
"""A Java that tells its version and starts nothing."""


def no_spark(directory: Path) -> Path:
    """A JAVA_HOME for ``ha-engine run``, whose query process ends as soon as it begins."""
    java = directory / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(NO_SPARK)
    java.chmod(0o755)
    return java.parents[1]


class NodeWithoutSpark(NodeUnderTest):
    """Takes events, follows, leads and is asked like any other; its queries never run.

    ``program`` is what Python runs as the node process.
    """

    program = ("-m", "ha_engine.node")

    def __init__(
        self,
        directory: Path,
        application: str,
        database_url: str,
        name: str = "node-a",
        **sections: dict[str, Any],
    ) -> None:
        self.runtime_dir = directory / "run"
        node = {"runtime_dir": str(self.runtime_dir), **sections.pop("node", {})}
        super().__init__(directory, application, database_url, name, node=node, **sections)

    def start(self) -> None:
        log = (self.directory / "node.log").open("ab")
        command = [sys.executable, *self.program, "--config", str(self.config_path)]
        command += ["--process", str(uuid.uuid4())]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        log.close()
        threading.Thread(target=self._supervise, args=(self.process,), daemon=True).start()

    def query_process_wanted(self, incarnation: str) -> None:
        """None comes, here."""

    def _supervise(self, process: subprocess.Popen[bytes]) -> None:
        """Says that no query process lives, starts none however often it is asked to, and tells
        of each that it is to stop that it is gone."""
        gone: SimpleQueue[pb.SupervisorEvent] = SimpleQueue()

        def events() -> Iterator[pb.SupervisorEvent]:
            yield pb.SupervisorEvent(query_alive=pb.QueryProcessAlive())
            while process.poll() is None:
                with contextlib.suppress(Empty):
                    yield gone.get(timeout=0.2)

        options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"unix:{self.runtime_dir / SOCKET_NAME}", options) as channel:
            try:
                for command in rpc.LocalStub(channel).Supervise(events(), wait_for_ready=True):
                    if command.WhichOneof("command") == "stop":
                        incarnation = command.stop.incarnation
                        ended = pb.QueryProcessGone(incarnation=incarnation, reason="stopped")
                        gone.put(pb.SupervisorEvent(query_gone=ended))
                    else:
                        self.query_process_wanted(command.start.incarnation)
            except grpc.RpcError:
                return
