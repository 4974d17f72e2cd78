"""The HTTP interface of an observer: its own state, the state of the nodes, the newest output, and
the page.

Each answer about a node has the header ``Age``, the seconds since the node said it.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from ha_engine import __version__
from ha_engine.api.cluster_body import Cluster
from ha_engine.api.http import CHECKS, METRICS, PROMETHEUS_TEXT, http_error
from ha_engine.api.openapi import openapi_route
from ha_engine.api.output import ARROW_FILE
from ha_engine.api.page import with_observed_page
from ha_engine.auth import Right
from ha_engine.config.observer import ObserverConfig
from ha_engine.errors import NotAValue
from ha_engine.observer.asking import PAGES, AskedNode
from ha_engine.observer.following import Following
from ha_engine.observer.metrics import ObserverMetrics
from ha_engine.observer.rows import Found, Wanted, as_arrow, as_objects, newest
from ha_engine.web.hosts import host_names_of
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter, described, guarded

LIMIT, LIMIT_MAX = 100, 10_000
WAITING_MAX = 8
"""The number of requests that may wait for rows; each holds batches in memory."""


@described
class NodeSeen(TypedDict):
    """A node as the observer last saw it."""

    url: str
    answers: bool
    """The node answered just now."""
    age_seconds: float | None
    """Seconds since its last answer; null if it never answered."""
    problem: str | None
    """The reason why it does not answer, or null."""
    role: str | None
    """Its role when it last answered."""
    epoch: int | None
    """Its epoch when it last answered."""


@described
class QuerySeen(TypedDict):
    """The output of a query that the observer has."""

    last_batch: int | None
    """The newest batch that the observer has or missed."""
    first_kept: int | None
    """The oldest batch that the observer still keeps."""
    received: int
    """Batches that the observer got."""
    missed: int
    """Batches that no node had any more when the observer asked."""
    last_missed: str | None
    """The numbers of the first and the last batch of the newest gap, such as 5-9."""
    rows: int
    """Rows that the observer keeps."""
    received_seconds_ago: float | None
    """Seconds since the newest batch arrived."""


@described
class ObserverStatus(TypedDict):
    """The observer's own state."""

    version: str
    group_id: str | None
    """UUID of the group whose output the observer keeps."""
    reaches_a_node: bool
    """A node answers the observer. If not, all other answers are old."""
    nodes: dict[str, NodeSeen]
    queries: dict[str, QuerySeen]


@described
class OutputBatch(TypedDict):
    """Rows of one batch, the last row first."""

    number: int
    received_seconds_ago: float
    rows: list[dict[str, Any]]


@described
class NewestOutput(TypedDict):
    """The newest rows of a query."""

    query: str
    reaches_a_node: bool
    """A node answers the observer. If not, there may be newer rows."""
    age_seconds: float | None
    """Seconds since a node last answered."""
    batches: list[OutputBatch]
    """Batches with the wanted rows, the newest first."""


@described
class Liveness(TypedDict):
    """The observer works."""

    ok: bool


_ABOUT = (
    "The HTTP interface of an observer, which shows the nodes of a group and the newest output of "
    "their queries, also while no node answers. Every refusal is a JSON object with the key "
    "'error'."
)
_AGE = (Parameter("Age", "header", "Seconds since the node said this.", int),)
_NEVER = Answer("No node has answered this observer yet.")
_STATUS = Operation(
    "status",
    "Show what the observer knows, and how old it is.",
    {200: Answer("The observer's own state.", ObserverStatus)},
    needs=Right.READ,
)
_CLUSTER = Operation(
    "cluster",
    "Show the nodes of the group, as the node that knows most last described them.",
    {200: Answer("The group.", Cluster, headers=_AGE), 503: _NEVER},
    needs=Right.READ,
)
_NODE = Operation(
    "node",
    "Show the last answer of one node.",
    {
        200: Answer("The body of the node's answer.", dict[str, Any], headers=_AGE),
        404: Answer("The observer watches no such node."),
        503: _NEVER,
    },
    takes=[
        Parameter("node", "path", "Name of the node."),
        Parameter(
            "page",
            "path",
            "The answer.",
            Literal["status", "cluster", "history", "application"],
        ),
    ],
    needs=Right.READ,
)
_OUTPUT = Operation(
    "newest",
    "Show the newest rows of a query.",
    {
        200: Answer("The rows, in JSON or as an Arrow IPC file.", NewestOutput, headers=_AGE),
        400: Answer("A parameter is not valid, or names no column."),
        404: Answer("The observer has no output of such a query."),
        503: Answer("Too many requests wait for rows."),
    },
    takes=[
        Parameter("query", "path", "Name of the query."),
        Parameter(
            "limit",
            "query",
            "Maximum number of rows.",
            Annotated[int, Field(ge=1, le=LIMIT_MAX, json_schema_extra={"default": LIMIT})],
        ),
        Parameter("format", "query", "Form of the rows.", Literal["json", "arrow"]),
        Parameter(
            "columns",
            "query",
            "Any other column with the value that it must have, such as region=north.",
            dict[str, str],
        ),
    ],
    needs=Right.READ,
)
_LIVENESS = Operation(
    "liveness",
    "Check that the observer works; needs no node.",
    {200: Answer("The observer works.", Liveness)},
    needs=Right.NOTHING,
)


def web_application(config: ObserverConfig, following: Following) -> Any:
    """Make the ASGI application with all routes of an observer, and the page."""
    metrics = ObserverMetrics(following)
    nodes = {node.name: node for node in following.nodes}
    rows = _NewestRows(following)

    async def status(request: Request) -> Response:
        return JSONResponse(status_of(following))

    async def cluster(request: Request) -> Response:
        return _last_answer(following.teller, "cluster")

    async def node(request: Request) -> Response:
        name, page = request.path_params["node"], request.path_params["page"]
        if name not in nodes or page not in PAGES:
            raise HTTPException(404, "not found")
        return _last_answer(nodes[name], page)

    async def alive(request: Request) -> Response:
        return JSONResponse(Liveness(ok=True))

    async def scrape(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=PROMETHEUS_TEXT)

    found = [
        OperationRoute("/v1/status", status, _STATUS, "GET"),
        OperationRoute("/v1/cluster", cluster, _CLUSTER, "GET"),
        OperationRoute("/v1/output/{query}", rows.respond, _OUTPUT, "GET"),
        OperationRoute("/nodes/{node}/v1/{page}", node, _NODE, "GET"),
        OperationRoute("/liveness", alive, _LIVENESS, *CHECKS),
        OperationRoute("/metrics", scrape, METRICS, "GET"),
    ]
    handlers: dict[Any, Any] = {HTTPException: http_error}
    names = host_names_of(config.http)
    served: Starlette = guarded(
        [*found, openapi_route(found, _ABOUT)], config.access.checks, handlers, names
    )
    return with_observed_page(served, list(nodes))


class _NewestRows:
    """The route with the newest rows of a query, which are read in one thread."""

    def __init__(self, following: Following) -> None:
        self._following, self._waiting = following, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")

    async def respond(self, request: Request) -> Response:
        query, store = request.path_params["query"], self._following.store
        if query not in store.progress:
            known = ", ".join(sorted(store.progress)) or "none"
            return JSONResponse({"error": f"no output of query {query}; known: {known}"}, 404)
        as_json, wanted = _wanted(request.query_params)
        if self._waiting >= WAITING_MAX:
            raise HTTPException(503, f"{WAITING_MAX} requests wait already; try again later")
        self._waiting += 1
        try:
            content = await self._read(query, wanted, as_json=as_json)
        except NotAValue as error:
            return JSONResponse({"error": str(error)}, 400)
        finally:
            self._waiting -= 1
        age = self._following.teller.age
        headers = {} if age is None else {"Age": str(int(age))}
        return Response(content, 200, headers, "application/json" if as_json else ARROW_FILE)

    async def _read(self, query: str, wanted: Wanted, *, as_json: bool) -> bytes:
        form = _json if as_json else _arrow
        batches = self._following.store.batches(query)
        work = partial(form, self._following, query, batches, wanted)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def status_of(following: Following) -> ObserverStatus:
    """The body of GET /v1/status of an observer."""
    return {
        "version": __version__,
        "group_id": following.store.group_id,
        "reaches_a_node": following.reaches_a_node,
        "nodes": {node.name: _seen(node) for node in following.nodes},
        "queries": {query: _query(following, query) for query in list(following.store.progress)},
    }


def _seen(node: AskedNode) -> NodeSeen:
    status = node.answers.get("status", {})
    return {
        "url": node.url,
        "answers": node.is_fresh,
        "age_seconds": _rounded(node.age),
        "problem": node.problem or None,
        "role": status.get("role"),
        "epoch": status.get("epoch"),
    }


def _query(following: Following, query: str) -> QuerySeen:
    progress, kept = following.store.progress[query], following.store.batches(query)
    return {
        "last_batch": progress.last,
        "first_kept": kept[0].number if kept else None,
        "received": progress.received,
        "missed": progress.missed,
        "last_missed": progress.last_missed,
        "rows": sum(one.rows for one in kept),
        "received_seconds_ago": _rounded(time.time() - kept[-1].received_at) if kept else None,
    }


def _last_answer(node: AskedNode, page: str) -> JSONResponse:
    if page not in node.answers or node.age is None:
        return JSONResponse({"error": node.problem or f"{node.name} has not said this yet"}, 503)
    return JSONResponse(node.answers[page], headers={"Age": str(int(node.age))})


def _wanted(given: QueryParams) -> tuple[bool, Wanted]:
    """Whether the rows shall be in JSON, and the wanted rows. Raises HTTPException."""
    limit, form = given.get("limit", str(LIMIT)), given.get("format", "json")
    valid = limit.isascii() and limit.isdigit() and len(limit) < 6
    if not valid or not 1 <= int(limit) <= LIMIT_MAX:
        raise HTTPException(400, f"limit must be a number from 1 to {LIMIT_MAX}")
    if form not in ("json", "arrow"):
        raise HTTPException(400, f"format is {form!r}, and not one of json, arrow")
    equal = {name: value for name, value in given.items() if name not in ("limit", "format")}
    return form == "json", Wanted(int(limit), equal)


def _arrow(following: Following, query: str, batches: Any, wanted: Wanted) -> bytes:
    return as_arrow(newest(batches, wanted))


def _json(following: Following, query: str, batches: Any, wanted: Wanted) -> bytes:
    body: NewestOutput = {
        "query": query,
        "reaches_a_node": following.reaches_a_node,
        "age_seconds": _rounded(following.teller.age),
        "batches": [_batch(found) for found in newest(batches, wanted)],
    }
    return bytes(JSONResponse(body).body)


def _batch(found: Found) -> OutputBatch:
    return {
        "number": found.batch.number,
        "received_seconds_ago": round(time.time() - found.batch.received_at, 1),
        "rows": as_objects(found),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
