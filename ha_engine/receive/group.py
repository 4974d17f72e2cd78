"""Combine requests into one record of the journal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pyarrow as pa

from ha_engine.receive.offsets import Pull
from ha_engine.types import Events, Position, Pulled, Submission

RECORD_BYTES_MAX = 4 << 20
"""A group takes no further request beyond this many bytes, but a single request may be larger."""
REQUEST_BYTES_MAX = 32 << 20
"""Limit of the Arrow bytes of one request, and so of a record: one message between nodes must
contain a record."""
SUBMISSIONS_MAX = 2_000
"""Limit of requests in one record. Each idempotent request takes about 80 bytes of the record's
meta."""


@dataclass(frozen=True, slots=True)
class Request:
    """The rows of a request that wait to be stored. ``size`` is in bytes; ``stored`` is done at the
    commit."""

    batch: pa.RecordBatch
    size: int
    submission: Submission | None
    pull: Pull | None
    stored: asyncio.Future[Position]

    @property
    def rows(self) -> int:
        """The number of events, with those that stay in a log outside the journal."""
        in_record: int = self.batch.num_rows
        return in_record + (0 if self.pull is None else self.pull.kept)

    @property
    def pulled(self) -> Pulled | None:
        if self.pull is None:
            return None
        return Pulled(self.pull.source, self.pull.offset, self.rows, self.pull.rejected)

    @property
    def digest(self) -> str:
        return "" if self.submission is None else self.submission.digest


@dataclass(slots=True)
class Group:
    """The requests that will become one record."""

    stream: str
    requests: list[Request] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.rows += request.rows
        self.size += request.size

    def has_room_for(self, request: Request, rows_max: int) -> bool:
        return (
            self.rows + request.rows <= rows_max
            and self.size + request.size <= RECORD_BYTES_MAX
            and len(self.requests) < SUBMISSIONS_MAX
        )

    def record(self, received_at_us: int) -> tuple[Events, bytes]:
        """Build the record of the group. Requests with a submission come first, so that the
        record's rows are in the order of its submissions."""
        ordered = sorted(self.requests, key=lambda request: request.submission is None)
        batches = [request.batch for request in ordered]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        submissions = tuple(one.submission for one in ordered if one.submission is not None)
        pulled = tuple(told for one in ordered if (told := one.pulled) is not None)
        events = Events(self.stream, self.rows, received_at_us, submissions, pulled)
        return events, batch.serialize().to_pybytes()

    def answer(self, position: Position) -> None:
        for request in self.requests:
            if not request.stored.done():
                request.stored.set_result(position)

    def refuse(self, error: BaseException) -> None:
        for request in self.requests:
            if not request.stored.done():
                request.stored.set_exception(error)
                request.stored.exception()  # so asyncio logs nothing if the client has left
