"""The part of the query process that a node needs, without Spark: batch after batch, in threads.

It calls the node over the real socket and writes real batches. A subclass gives the rows.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from ha_engine.errors import CheckpointTooOld, QueryProcessFailed, StateLost
from ha_engine.query.link import Address, NodeLink
from ha_engine.query.outbox_writer import OutboxPlace, OutboxWriter, clear_pending
from ha_engine.query.reports import Reports
from ha_engine.types import Mark
from ha_engine.v1 import local_pb2 as pb

BATCH_MS = 5


class BatchFails(Exception):
    """The batch fails with this reason, as it does when a query divides by zero."""


class QueryStandIn:
    """The queries of one query process, for as long as the node keeps it."""

    schema: pa.Schema

    def __init__(self, address: Address, outbox: Path) -> None:
        self._address, self._outbox = address, outbox
        self.link = NodeLink(address)
        self._reports = Reports(self.link, lambda error: None)
        self._running: dict[str, pb.RunQuery] = {}
        self._threads: dict[str, threading.Thread] = {}

    def run(self, command: pb.RunQuery) -> None:
        """Run a query. A restarted node repeats its command, and needs only the schema again."""
        if self._running.get(command.query) == command:
            self._plan(command)
            return
        self._running[command.query] = command
        self._threads[command.query] = threading.Thread(
            target=self._serve, args=(command,), daemon=True
        )
        self._threads[command.query].start()

    def halt(self, query: str) -> None:
        """End a query, and return once it writes no more."""
        if self._running.pop(query, None) is not None:
            self._threads[query].join()

    def report_halt(self, query: str) -> None:
        """Tell the node that a query writes no more."""
        self.link.call(
            self.link.stub.ReportQuery,
            pb.ReportQueryRequest(
                incarnation=self._address.incarnation, query=query, halted=pb.Empty()
            ),
        )

    # -- what a subclass gives ---------------------------------------------------------------------

    def last_batch(self, run: pb.RunQuery) -> Mark:
        """Return the mark of the query's last batch, as a checkpoint has it."""
        raise NotImplementedError

    def rows(self, run: pb.RunQuery, before: Mark, mark: Mark) -> pa.Table:
        """Return the rows of the batch that ends at ``mark``. Raises BatchFails."""
        raise NotImplementedError

    def batch_ended(self, run: pb.RunQuery, mark: Mark) -> None:
        """Write the checkpoint."""
        raise NotImplementedError

    def disown(self, run: pb.RunQuery) -> None:
        """Forget the checkpoint, which no batch can continue."""
        raise NotImplementedError

    # -- one query ---------------------------------------------------------------------------------

    def _serve(self, run: pb.RunQuery) -> None:
        """Serve a query until the node has another query process, or none."""
        try:
            self._run_batches(run)
        except StateLost as error:
            self._fail(run, pb.QueryFailed(reason=str(error), by_host=True))
        except CheckpointTooOld as error:
            self.disown(run)
            self._fail(run, pb.QueryFailed(reason=str(error), by_host=True))
        except QueryProcessFailed:
            pass
        self._ended(run)

    def _fail(self, run: pb.RunQuery, failed: pb.QueryFailed) -> None:
        # The node may repeat its command before it answers the report.
        self._ended(run)
        self._say(run, failed=failed)

    def _ended(self, run: pb.RunQuery) -> None:
        if self._running.get(run.query) is run:
            del self._running[run.query]

    def _run_batches(self, run: pb.RunQuery) -> None:
        place = OutboxPlace(run.query, self._outbox, run.lineage)
        clear_pending(place)
        writer = OutboxWriter(place, Path(), self.link, self._reports)
        if not self._plan(run):
            return
        last = self.last_batch(run)
        while self._running.get(run.query) is run:
            mark = self._next_mark(run, last)
            try:
                rows = self.rows(run, last, mark)
            except BatchFails as failure:
                self._fail(run, pb.QueryFailed(number=mark.number, reason=str(failure)))
                return
            writer.put(mark.number, rows)
            self.batch_ended(run, mark)
            progress = pb.QueryProgress(number=mark.number, duration_ms=BATCH_MS)
            self._say(run, progress=progress)
            last = mark

    def _plan(self, run: pb.RunQuery) -> bool:
        """Report the schema; return whether the node lets the query start."""
        planned = pb.QueryPlanned(schema=self.schema.serialize().to_pybytes())
        return not self._say(run, planned=planned).refused

    def _next_mark(self, run: pb.RunQuery, last: Mark) -> Mark:
        request = pb.AwaitMarkRequest(
            incarnation=self._address.incarnation,
            query=last.query,
            after=last.number,
            lineage=run.lineage,
        )
        while (reply := self.link.call(self.link.stub.AwaitMark, request)).pending:
            if self._running.get(run.query) is not run:
                raise QueryProcessFailed(f"another command runs {run.query} now")
        if reply.trimmed:
            raise CheckpointTooOld(f"there is no mark after {last.number}")
        return Mark(last.query, reply.number, reply.sequence)

    def _say(self, run: pb.RunQuery, **report: Any) -> pb.ReportQueryReply:
        request = pb.ReportQueryRequest(
            incarnation=self._address.incarnation, query=run.query, lineage=run.lineage, **report
        )
        return self.link.call(self.link.stub.ReportQuery, request)
