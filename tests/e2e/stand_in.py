"""Nodes whose queries run at once: a thread of the test replaces the query process.

It calls the node over the real socket and writes real batches of artificial rows. It serves tests
of the nodes that do not need the results of Spark.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from ha_engine.errors import QueryProcessFailed
from ha_engine.query.link import Address, NodeLink, open_channel
from ha_engine.query.outbox_writer import OutboxPlace, OutboxWriter, clear_pending
from ha_engine.query.reports import Reports
from ha_engine.system.runtime_dir import SOCKET_NAME
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1.local_pb2_grpc import LocalStub
from tests.e2e.without_spark import NodeWithoutSpark

ROWS = pa.table({"id": pa.array([1], pa.int32()), "text": ["x"]})
BATCH_MS = 5


class NodeWithStandIn(NodeWithoutSpark):
    """A node whose batches all are ROWS. ``failing`` is the reason why the next ones fail, or
    empty."""

    def __init__(self, *args: Any, **sections: Any) -> None:
        super().__init__(*args, **sections)
        self.failing = ""
        self.batches: dict[str, int] = {}
        """The last batch of each query, as a checkpoint would have it."""

    def query_process_wanted(self, incarnation: str) -> None:
        address = Address(str(self.runtime_dir / SOCKET_NAME), incarnation)
        threading.Thread(target=_StandIn(self, address).attend, daemon=True).start()


class _StandIn:
    """One query process, for as long as the node keeps it."""

    def __init__(self, node: NodeWithStandIn, address: Address) -> None:
        self._node, self._address = node, address
        self._link = NodeLink(address)
        self._reports = Reports(self._link, lambda error: None)

    def attend(self) -> None:
        request = pb.AttendRequest(incarnation=self._address.incarnation)
        with contextlib.suppress(grpc.RpcError), open_channel(self._address) as channel:
            for command in LocalStub(channel).Attend(request, wait_for_ready=True):
                if command.WhichOneof("command") == "run":
                    threading.Thread(target=self._serve, args=(command.run,), daemon=True).start()

    def _serve(self, run: pb.RunQuery) -> None:
        """Serve a query until the node has another query process, or none."""
        with contextlib.suppress(QueryProcessFailed):
            self._run(run)

    def _run(self, run: pb.RunQuery) -> None:
        place = OutboxPlace(run.query, self._node.data_dir / "outbox")
        clear_pending(place)
        writer = OutboxWriter(place, Path(), self._link, self._reports)
        self._say(run.query, planned=pb.QueryPlanned(schema=ROWS.schema.serialize().to_pybytes()))
        number = max(run.initial_mark, self._node.batches.get(run.query, 0))
        while True:
            number = self._next_mark(run.query, number)
            if self._node.failing:
                failed = pb.QueryFailed(number=number, reason=self._node.failing)
                self._say(run.query, failed=failed)
                return
            writer.put(number, ROWS)
            self._node.batches[run.query] = number
            self._say(run.query, progress=pb.QueryProgress(number=number, duration_ms=BATCH_MS))

    def _next_mark(self, query: str, after: int) -> int:
        request = pb.AwaitMarkRequest(
            incarnation=self._address.incarnation, query=query, after=after
        )
        while (reply := self._link.call(self._link.stub.AwaitMark, request)).pending:
            pass
        return int(reply.number)

    def _say(self, query: str, **report: Any) -> None:
        incarnation = self._address.incarnation
        request = pb.ReportQueryRequest(incarnation=incarnation, query=query, **report)
        self._link.call(self._link.stub.ReportQuery, request)
