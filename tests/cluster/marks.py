"""Marks of Kafka topics, and a server of a Unix socket that answers for the node."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Ends = dict[str, dict[int, int]]
"""Where a mark ends: by topic and partition, the offset behind the last record."""


class Marks:
    """The marks of a query, which more than one driver may ask for. ``marks[0]`` is its start."""

    def __init__(self, start: Ends) -> None:
        self._marks = [start]
        self._changed = threading.Condition()
        self._is_open = True
        self.asked = list[dict[str, Any]]()

    def add(self, *ends: Ends) -> None:
        with self._changed:
            self._marks += ends
            self._changed.notify_all()

    @property
    def last(self) -> int:
        return len(self._marks) - 1

    def __getitem__(self, number: int) -> Ends:
        return self._marks[number]

    def close(self) -> None:
        """Answer nobody any more, as a node that ends."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the offset that ``question`` asks for, once there is one."""
        if "skipped" in question:
            return {"skipped": False}
        number = question.get("after", -1) + 1
        topics = question["topics"].split(",")
        with self._changed:
            self.asked.append(question)
            self._changed.wait_for(lambda: self.last >= number or not self._is_open)
            if not self._is_open:
                return None
            ends = self._marks[number]
        at = {topic: ends[topic] for topic in topics}
        return {"mark": number, "sequence": number, "at": at}


@contextmanager
def serving(marks: Marks, socket: Path) -> Iterator[None]:
    """Serve ``marks`` at ``socket``, whose path has at most 107 bytes."""

    class Question(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer = marks.answer(json.loads(self.rfile.readline()))
            if answer is not None:
                with contextlib.suppress(BrokenPipeError):  # a driver that was killed
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(str(socket), Question) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            marks.close()
            server.shutdown()
            thread.join()
            socket.unlink()
