"""Answer the source where the batches of a test end, as the node process does on a node.

The journal of the test has the records of all batches from the beginning, so the service decides
nothing: the test says how many marks there are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from ha_engine.journal import Journal
from ha_engine.v1 import local_pb2 as pb

INCARNATION = "test"
_SERVICE = "ha_engine.v1.Local"
_SLICE_SECONDS = 0.5
_THREADS = 16


class MarkService:
    """The answers to the source's questions, on a socket.

    ``ends`` has the sequence of the last record of each batch. Each query gets these marks first,
    and then those of ``add``, whose batches are empty.
    """

    def __init__(self, socket: Path, journal: Journal, ends: Sequence[int]) -> None:
        self._journal, self._ends = journal, ends
        self._added: dict[str, int] = {}
        self._changed = threading.Condition()
        self._has_stopped = False
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        methods = {
            "AwaitMark": _method(self.await_mark, pb.AwaitMarkRequest),
            "Locate": _method(self.locate, pb.LocateRequest),
        }
        handler = grpc.method_handlers_generic_handler(_SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def add(self, query: str) -> None:
        """Add a mark of an empty batch."""
        with self._changed:
            self._added[query] = self._added.get(query, 0) + 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._has_stopped = True
            self._changed.notify_all()
        self._server.stop(grace=None).wait()

    def _count(self, query: str) -> int:
        return len(self._ends) + self._added.get(query, 0)

    def _end(self, number: int) -> int:
        return self._ends[min(number, len(self._ends)) - 1] if self._ends else 0

    # -- the protocol ------------------------------------------------------------------------------

    def await_mark(
        self, request: pb.AwaitMarkRequest, context: grpc.ServicerContext
    ) -> pb.AwaitMarkReply:
        query, number = request.query, request.after + 1
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_stopped or self._count(query) >= number, _SLICE_SECONDS
            )
            if self._count(query) < number:
                return pb.AwaitMarkReply(pending=True)
        return pb.AwaitMarkReply(number=number, sequence=self._end(number))

    def locate(self, request: pb.LocateRequest, context: grpc.ServicerContext) -> pb.LocateReply:
        found = self._journal.locate(request.first_sequence, request.last_sequence)
        return pb.LocateReply(
            extents=[pb.Extent(path=e.path, offset=e.offset, length=e.length) for e in found]
        )


def _method(answer: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        answer, request.FromString, lambda reply: reply.SerializeToString()
    )
