"""The HTTP route that gives observers the published batches of a query, in order.

A batch is published when every sink has it, by committed records, so it can change no more. The
route reads files in a thread of its own, one at a time: an observer that asks often, or reads
slowly, delays only other observers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from ha_engine.auth import Right
from ha_engine.outbox.published import PublishedBatches
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter, described

ARROW_FILE = "application/vnd.apache.arrow.file"
BATCH, ROWS, CRC32C, GROUP_ID = "X-Batch", "X-Rows", "X-CRC32C", "X-Group-Id"
WAITING_MAX = 8
"""The number of requests that may wait for the disk or for their client. Each holds one batch."""
_NUMBER_MAX = 10**18


@described
class Gone(TypedDict):
    """The next batch is no longer kept."""

    error: str
    """One sentence: which batch, and where to continue."""
    oldest: int
    """The number of the oldest kept batch after the one that is gone."""


_HEADERS = (
    Parameter(BATCH, "header", "Number of the batch.", int),
    Parameter(ROWS, "header", "Number of its rows.", int),
    Parameter(CRC32C, "header", "CRC32C of the body, in decimal.", int),
    Parameter(GROUP_ID, "header", "UUID of the group whose batch it is."),
)
_OUTPUT = Operation(
    "output",
    "Get the published batch of a query that follows another one.",
    {
        200: Answer("The batch, as an Arrow IPC file.", bytes, ARROW_FILE, _HEADERS),
        204: Answer("No later batch is published yet.", None),
        400: Answer("The number of the batch is not valid."),
        404: Answer("The application has no such query, or the node keeps no output."),
        410: Answer("The next batch is published, but no longer kept.", Gone),
        503: Answer("Too many observers ask at once, or the disk fails."),
    },
    takes=[
        Parameter("query", "path", "Name of the query."),
        Parameter(
            "after",
            "query",
            "Number of the batch before the wanted one; 0 or none means the first batch.",
            Annotated[int, Field(ge=0, le=_NUMBER_MAX)],
        ),
    ],
    needs=Right.READ,
)


class OutputReader:
    """The published batches of ``queries``, as the route reads them. ``group_id`` returns the
    group's UUID, or nothing before a node knows it. Without ``keeps_batches`` the node may keep
    batches for another purpose, and no observer gets them."""

    def __init__(
        self,
        queries: Sequence[str],
        published: PublishedBatches,
        group_id: Callable[[], str],
        *,
        keeps_batches: bool,
    ) -> None:
        self.queries, self._published, self._group_id = queries, published, group_id
        self.keeps_batches = keeps_batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="observers")

    async def next_batch(self, query: str, after: int) -> Response:
        """The answer with the batch after ``after``. Raises HTTPException."""
        batch = self._published.after(query, after)
        if batch is None:
            return Response(status_code=204)
        if batch.number > after + 1:
            return _gone(query, after + 1, batch.number)
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(self._thread, self._published.read, batch)
        except FileNotFoundError:
            later = self._published.after(query, after + 1)
            return _gone(query, after + 1, later.number if later else after + 2)
        except OSError as error:
            raise HTTPException(503, f"batch {batch.number} cannot be read: {error}") from error
        headers = {BATCH: str(batch.number), ROWS: str(batch.rows), GROUP_ID: self._group_id()}
        if content.crc32c is not None:
            headers[CRC32C] = str(content.crc32c)
        return Response(content.ipc, headers=headers, media_type=ARROW_FILE)


def output_route(reader: OutputReader) -> OperationRoute:
    """The route ``GET /v1/queries/NAME/output``."""
    sending = _Limit()

    async def show(request: Request) -> Response:
        query, after = request.path_params["query"], request.query_params.get("after", "0")
        if query not in reader.queries:
            return JSONResponse({"error": f"no query named {query}"}, 404)
        if not reader.keeps_batches:
            reason = "this node keeps no output for observers; set observe.keep_batches"
            return JSONResponse({"error": reason}, 404)
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise HTTPException(400, "after must be the number of a batch, such as 0 or 17")
        if sending.count >= WAITING_MAX:
            raise HTTPException(503, f"{WAITING_MAX} observers wait already; try again later")
        sending.count += 1
        try:
            return _Counted(await reader.next_batch(query, int(after)), sending)
        except BaseException:
            sending.count -= 1
            raise

    return OperationRoute("/v1/queries/{query}/output", show, _OUTPUT, "GET")


class _Limit:
    """The number of answers that are being made or sent."""

    def __init__(self) -> None:
        self.count = 0


class _Counted(Response):
    """An answer that counts until its client has it or leaves, since it holds a batch so long."""

    def __init__(self, answer: Response, sending: _Limit) -> None:
        self._answer, self._sending = answer, sending

    async def __call__(self, *asgi: object) -> None:
        try:
            await self._answer(*asgi)  # type: ignore[arg-type]
        finally:
            self._sending.count -= 1


def _gone(query: str, wanted: int, oldest: int) -> JSONResponse:
    reason = (
        f"batch {wanted} of query {query} is no longer kept; the next kept one is {oldest}, "
        "and the sinks have all of them"
    )
    return JSONResponse({"error": reason, "oldest": oldest}, 410)
