"""A real node process with a supervisor that starts no Spark: seconds instead of minutes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from tests.e2e.node_under_test import NodeUnderTest

ROOM = {"receive": {"max_backlog_events": 1 << 30}}
"""Without a query, the sent events wait for a batch for ever."""
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
"""A Java that prints its version and starts nothing."""


def no_spark(directory: Path) -> Path:
    """Return a JAVA_HOME for ``ha-engine run`` whose query process ends at once."""
    java = directory / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(NO_SPARK)
    java.chmod(0o755)
    return java.parents[1]


class NodeWithoutSpark(NodeUnderTest):
    """A node that takes events, follows, leads and answers like any other; its queries never run.

    ``program`` is what Python runs as the node process, which has no supervisor.
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
        ours, its = socket.socketpair()
        log = (self.directory / "node.log").open("ab")
        command = [sys.executable, *self.program, "--config", str(self.config_path)]
        command += ["--process", str(uuid.uuid4()), "--link", str(its.fileno())]
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, pass_fds=(its.fileno(),)
        )
        log.close()
        its.close()
        threading.Thread(target=self._supervise, args=(ours,), daemon=True).start()

    def query_process_wanted(self, incarnation: str) -> None:
        """Start no query process."""

    def _supervise(self, link: socket.socket) -> None:
        """Report that no query process lives, start none on any request, and report each query
        process that shall stop as gone."""
        with contextlib.suppress(OSError), link, link.makefile("rw") as pipe:
            for line in pipe:
                match json.loads(line):
                    case {"settings": _}:
                        answer: dict[str, Any] = {"alive": {"incarnation": "", "pid": 0}}
                    case {"stop": {"incarnation": incarnation}}:
                        gone = {"incarnation": incarnation, "reason": "stopped", "by_host": False}
                        answer = {"gone": gone}
                    case {"start": {"incarnation": incarnation}}:
                        self.query_process_wanted(incarnation)
                        continue
                    case _:
                        continue
                pipe.write(json.dumps(answer) + "\n")
                pipe.flush()
