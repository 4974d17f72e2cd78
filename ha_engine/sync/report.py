"""The status that a node sends its peers, for people to read. No decision of a node depends on the
status that a peer sends."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.sync.codec import MalformedFrame
from ha_engine.v1 import sync_pb2 as pb

REPORT_EVERY_SECONDS = 1.0
TEXT_MAX = 300
QUERIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The status of one query of the node. ``mark``, ``batch``, ``published`` and ``differs`` are
    numbers of batches.

    ``published`` is the last batch that every sink has. ``differs`` is the first batch whose output
    differs from the holder's; 0 means that none differs.
    """

    query: str
    state: str
    mark: int
    batch: int
    published: int
    differs: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A summary of a node's status. ``last``, ``durable`` and ``committed`` are sequences.

    ``url`` is the address of the node's HTTP interface. ``follows`` is true while the node receives
    the holder's records. ``query_process_connected`` is true while the node's
    query process is connected to its node process. ``headroom`` is true while the node's disk has
    space for events. ``to_restore`` is the number of bytes of a snapshot that the node has not yet
    downloaded. ``ingest`` is the node's gRPC address for producers, or empty. ``ranges`` is the
    address at which executors of a cluster read the node's journal, or empty. ``shadow`` is the
    shadow that the node runs: its ``mark`` and ``published`` are those of its live query.
    """

    role: str
    reason: str
    epoch: int
    url: str
    journal_id: str
    last: int
    durable: int
    committed: int
    suspended: bool
    warm: bool
    headroom: bool
    follows: bool
    query_process_connected: bool
    queries: tuple[QueryReport, ...] = ()
    to_restore: int = 0
    ingest: str = ""
    ranges: str = ""
    shadow: QueryReport | None = None


def to_sync_frame(report: Report) -> pb.SyncFrame:
    frame = pb.Report(
        role=report.role,
        reason=report.reason[:TEXT_MAX],
        epoch=report.epoch,
        url=report.url[:TEXT_MAX],
        journal_id=report.journal_id,
        last=report.last,
        durable=report.durable,
        committed=report.committed,
        suspended=report.suspended,
        warm=report.warm,
        headroom=report.headroom,
        follows=report.follows,
        query_process_connected=report.query_process_connected,
        queries=map(_from_query, report.queries[:QUERIES_MAX]),
        to_restore=report.to_restore,
        ingest=report.ingest[:TEXT_MAX],
        ranges=report.ranges[:TEXT_MAX],
        shadow=None if report.shadow is None else _from_query(report.shadow),
    )
    return pb.SyncFrame(report=frame)


def from_sync_frame(frame: pb.Report) -> Report:
    """Decode a report. Raises MalformedFrame when the report is longer than any valid report."""
    texts = [frame.role, frame.reason, frame.url, frame.journal_id]
    texts += [frame.ingest, frame.ranges]
    queries = [*frame.queries, frame.shadow]
    texts += [text for query in queries for text in (query.query, query.state)]
    if any(len(text) > TEXT_MAX for text in texts) or len(frame.queries) > QUERIES_MAX:
        raise MalformedFrame("the peer's report is too long")
    return Report(
        frame.role,
        frame.reason,
        frame.epoch,
        frame.url,
        frame.journal_id,
        frame.last,
        frame.durable,
        frame.committed,
        frame.suspended,
        frame.warm,
        frame.headroom,
        frame.follows,
        frame.query_process_connected,
        tuple(map(_to_query, frame.queries)),
        frame.to_restore,
        frame.ingest,
        frame.ranges,
        _to_query(frame.shadow) if frame.HasField("shadow") else None,
    )


def _from_query(query: QueryReport) -> pb.QueryReport:
    return pb.QueryReport(
        query=query.query,
        state=query.state,
        mark=query.mark,
        batch=query.batch,
        published=query.published,
        differs=query.differs,
    )


def _to_query(frame: pb.QueryReport) -> QueryReport:
    return QueryReport(
        frame.query, frame.state, frame.mark, frame.batch, frame.published, frame.differs
    )
