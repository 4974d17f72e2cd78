"""Report digests and progress to the node in a thread, outside a batch's critical path.

The queue of reports is bounded. If the queue is full, a digest waits, since the node process needs
every digest. Other reports are dropped if the queue is full, since the next report replaces them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pyarrow as pa

from ha_engine.outbox.batch_file import digest_of_table
from ha_engine.query.jvm import ClusterState
from ha_engine.query.link import NodeLink
from ha_engine.v1 import local_pb2 as pb

WAITING_MAX = 8
UNCOMPARED = "uncompared"
"""The digest of every batch of a query that is declared not deterministic."""


class Reports:
    """The thread that sends reports, and its queue.

    If an error ends the thread, the thread calls ``failed``, and the process must end.
    """

    def __init__(self, link: NodeLink, failed: Callable[[BaseException], None]) -> None:
        self._link, self._failed = link, failed
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(WAITING_MAX)
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def digest(self, query: str, number: int, table: pa.Table) -> None:
        """Queue the digest of an admitted batch; the call blocks while WAITING_MAX reports wait."""
        self._waiting.put(lambda: self._send_digest(query, number, digest_of_table(table)))

    def uncompared(self, query: str, number: int) -> None:
        self._waiting.put(lambda: self._send_digest(query, number, UNCOMPARED))

    def progress(self, query: str, progress: pb.QueryProgress) -> None:
        self._put_or_drop(lambda: self._send_progress(query, progress))

    def executors(self, state: ClusterState) -> None:
        self._put_or_drop(lambda: self._send_executors(state))

    def _put_or_drop(self, report: Callable[[], None]) -> None:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            pass

    def _run(self) -> None:
        try:
            while True:
                self._waiting.get()()
        except BaseException as error:
            self._failed(error)

    def _send_digest(self, query: str, number: int, digest: str) -> None:
        request = pb.ReportDigestRequest(
            incarnation=self._link.address.incarnation, query=query, number=number, digest=digest
        )
        self._link.call(self._link.stub.ReportDigest, request)

    def _send_progress(self, query: str, progress: pb.QueryProgress) -> None:
        request = pb.ReportQueryRequest(
            incarnation=self._link.address.incarnation, query=query, progress=progress
        )
        self._link.call(self._link.stub.ReportQuery, request)

    def _send_executors(self, state: ClusterState) -> None:
        request = pb.ReportExecutorsRequest(
            incarnation=self._link.address.incarnation,
            application=state.application,
            live=state.live,
            wanted=state.wanted,
            master_connected=state.master_connected,
        )
        self._link.call(self._link.stub.ReportExecutors, request)
