"""Answer Spark's Kafka source, which runs in the JVM, where the next batch of a query ends.

The source asks over a Unix socket (``haengine.kafka.Marks``): one line of JSON for a question, one
line for the answer, one connection for each. The question names the query process, the query, its
lineage and the stream, and has one of these members:

- ``after``: the number of a mark. The answer is the mark that follows, with the offsets.
- ``skipped``: the number of a mark. The answer says whether its batch reads no rows.
- neither: the answer is the mark that the question gives with its sequence, such as the one before
  the query's first batch, with the offsets.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ha_engine.errors import EngineError
from ha_engine.query.link import NodeLink
from ha_engine.query.marks import too_old
from ha_engine.v1 import local_pb2 as pb

SOCKET = "mark.sock"


class KafkaMarks:
    """The server of the socket, beside the node's socket, until the process ends."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self.socket = Path(link.address.socket).with_name(SOCKET)
        self._lock = threading.Lock()
        self._is_serving = False

    def serve(self) -> None:
        """Listen on the socket, unless this process does so already."""
        with self._lock:
            if self._is_serving:
                return
            self._is_serving = True
        self.socket.unlink(missing_ok=True)
        marks = self

        class Question(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = marks.answer(json.loads(self.rfile.readline()), self.connection)
                # Spark has closed the connection of a query that it stopped.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

        server = Server(str(self.socket), Question)
        threading.Thread(target=server.serve_forever, name="Kafka's marks", daemon=True).start()

    def answer(self, question: Mapping[str, Any], asker: socket.socket) -> dict[str, Any]:
        if question["incarnation"] != self._incarnation:
            return {"error": "this JVM belongs to an earlier query process"}
        try:
            if "skipped" in question:
                return {"skipped": self._skipped(question["query"], int(question["skipped"]))}
            if "after" in question:
                mark, sequence = self._after(question, asker)
            else:
                mark, sequence = int(question["mark"]), int(question["sequence"])
            ends = self._ends(question["stream"], sequence, asker)
            return {"mark": mark, "sequence": sequence, "at": ends}
        except EngineError as error:
            # The same text as in a traceback of Python, by which ``failure`` knows the error.
            return {"error": f"{type(error).__module__}.{type(error).__name__}: {error}"}

    def _skipped(self, query: str, number: int) -> bool:
        request = pb.SkippedRequest(incarnation=self._incarnation, query=query, number=number)
        return bool(self._link.call(self._link.stub.Skipped, request).skipped)

    def _after(self, question: Mapping[str, Any], asker: socket.socket) -> tuple[int, int]:
        after = int(question["after"])
        request = pb.AwaitMarkRequest(
            incarnation=self._incarnation,
            query=question["query"],
            after=after,
            lineage=question["lineage"],
        )
        while (reply := self._link.call(self._link.stub.AwaitMark, request)).pending:
            _require_waiting(asker)
        if reply.trimmed:
            raise too_old(after)
        return reply.number, reply.sequence

    def _ends(self, stream: str, sequence: int, asker: socket.socket) -> Any:
        request = pb.LogEndsRequest(incarnation=self._incarnation, stream=stream, sequence=sequence)
        while (reply := self._link.call(self._link.stub.LogEnds, request)).pending:
            _require_waiting(asker)
        return json.loads(reply.ends)

    @property
    def _incarnation(self) -> str:
        return self._link.address.incarnation


class _NobodyWaits(EngineError):
    """Spark has stopped the query that asked."""


def _require_waiting(asker: socket.socket) -> None:
    """Raise _NobodyWaits if Spark has closed the connection."""
    with contextlib.suppress(BlockingIOError):
        if not asker.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise _NobodyWaits("the query was stopped")
