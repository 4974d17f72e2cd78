"""Nodes whose queries run at once: a thread of the test replaces the query process.

The batches have artificial rows. It serves tests of the nodes that do not need the results of
Spark.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import grpc
import pyarrow as pa

from ha_engine import __version__
from ha_engine.query.link import Address, open_channel
from ha_engine.system.runtime_dir import SOCKET_NAME
from ha_engine.types import Mark
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1.local_pb2_grpc import LocalStub
from tests.e2e.query_stand_in import BatchFails, QueryStandIn
from tests.e2e.without_spark import NodeWithoutSpark

ROWS = pa.table({"id": pa.array([1], pa.int32()), "text": ["x"]})


class NodeWithStandIn(NodeWithoutSpark):
    """A node whose batches all have the rows ``rows``. ``failing`` is the reason why the next ones
    fail, or empty."""

    def __init__(self, *args: Any, **sections: Any) -> None:
        super().__init__(*args, **sections)
        self.failing = ""
        self.rows = ROWS
        self.batches: dict[str, int] = {}
        """The last batch of each query, as a checkpoint would have it."""

    def query_process_wanted(self, incarnation: str) -> None:
        address = Address(str(self.runtime_dir / SOCKET_NAME), incarnation)
        threading.Thread(target=self._attend, args=(address,), daemon=True).start()

    def _attend(self, address: Address) -> None:
        stand_in = _ArtificialRows(self, address)
        request = pb.AttendRequest(incarnation=address.incarnation, release=__version__)
        with contextlib.suppress(grpc.RpcError), open_channel(address) as channel:
            for command in LocalStub(channel).Attend(request, wait_for_ready=True):
                if command.WhichOneof("command") == "run":
                    stand_in.run(command.run)


class _ArtificialRows(QueryStandIn):
    schema = ROWS.schema

    def __init__(self, node: NodeWithStandIn, address: Address) -> None:
        super().__init__(address, node.data_dir / "outbox")
        self._node = node

    def last_batch(self, run: pb.RunQuery) -> Mark:
        number = max(run.initial_mark, self._node.batches.get(run.query, 0))
        return Mark(run.query, number, 0)

    def rows(self, run: pb.RunQuery, before: Mark, mark: Mark) -> pa.Table:
        if self._node.failing:
            raise BatchFails(self._node.failing)
        return self._node.rows

    def disown(self, run: pb.RunQuery) -> None:
        del self._node.batches[run.query]

    def batch_ended(self, run: pb.RunQuery, mark: Mark) -> None:
        self._node.batches[run.query] = mark.number
