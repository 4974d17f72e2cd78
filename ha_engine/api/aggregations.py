"""The HTTP route that reads an aggregation from the database.

The route works on every node that reaches the database, active or not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Protocol
from zoneinfo import ZoneInfo

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ha_engine.aggregation import Aggregation, Granularity, Question
from ha_engine.api.bodies import AggregationRows
from ha_engine.auth import Right
from ha_engine.errors import (
    AggregationNotReady,
    DatabaseNotReady,
    DatabaseUnreachable,
    NotAValue,
)
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter

LIMIT, LIMIT_MAX = 1_000, 10_000
WAITING_MAX = 8
"""The number of requests that may wait for the database. Each takes a thread of the node, which has
few."""
_TIME = "2026-03-01T00:00:00Z or 2026-03-01, which is in the time zone of the aggregation"
_READ = Operation(
    "aggregation",
    "Show the values of an aggregation by period.",
    {
        200: Answer("The rows.", AggregationRows),
        400: Answer("A parameter is unknown, or its value is not valid."),
        404: Answer("The application has no such aggregation."),
        503: Answer("The database does not answer in time, or has no tables of the aggregation."),
    },
    takes=[
        Parameter("aggregation", "path", "Name of the sink of type aggregation."),
        Parameter(
            "per",
            "query",
            "Length of the periods; the shortest that the aggregation has, if left out.",
            Granularity,
        ),
        Parameter("from", "query", f"Periods that begin then or later, such as {_TIME}."),
        Parameter("to", "query", "Periods that begin before then."),
        Parameter(
            "by",
            "query",
            "Key of the rows; may be repeated, and an empty one means no key. All keys, if left "
            "out.",
            list[str],
        ),
        Parameter(
            "keys",
            "query",
            "Any key of the aggregation with the value that it must have, such as region=north.",
            dict[str, str],
        ),
        Parameter("order", "query", "Whether the oldest rows come first.", Literal["asc", "desc"]),
        Parameter(
            "limit",
            "query",
            "Maximum number of rows.",
            Annotated[int, Field(ge=1, le=LIMIT_MAX, json_schema_extra={"default": LIMIT})],
        ),
    ],
    needs=Right.READ,
)


class Reader(Protocol):
    """The tables of an aggregation.

    The call ``rows`` blocks, for a limited time. It raises NotAValue, AggregationNotReady,
    DatabaseUnreachable and DatabaseNotReady.
    """

    @property
    def aggregation(self) -> Aggregation: ...
    def rows(self, question: Question) -> list[str]: ...


def aggregation_routes(readers: Mapping[str, Reader]) -> list[OperationRoute]:
    """The route ``GET /v1/aggregations/NAME``."""
    waiting = 0

    async def read(request: Request) -> Response:
        nonlocal waiting
        name = request.path_params["aggregation"]
        if (reader := readers.get(name)) is None:
            known = ", ".join(sorted(readers)) or "none"
            return JSONResponse({"error": f"no aggregation is named {name}; known: {known}"}, 404)
        question = question_of(reader.aggregation, request.query_params)
        if waiting >= WAITING_MAX:
            raise HTTPException(503, f"{WAITING_MAX} requests wait already; try again later")
        waiting += 1
        try:
            rows = await run_in_threadpool(reader.rows, question)
        except NotAValue as error:
            return JSONResponse({"error": str(error)}, 400)
        except (AggregationNotReady, DatabaseUnreachable, DatabaseNotReady) as error:
            return JSONResponse({"error": str(error)}, 503)
        finally:
            waiting -= 1
        return Response(_body(reader.aggregation, question, rows), media_type="application/json")

    return [OperationRoute("/v1/aggregations/{aggregation}", read, _READ, "GET")]


def _body(aggregation: Aggregation, question: Question, rows: list[str]) -> str:
    head = json.dumps(
        {
            "aggregation": aggregation.name,
            "per": question.per,
            "time_zone": aggregation.time_zone,
            "more": len(rows) > question.rows_max,
        }
    )
    return f'{head[:-1]}, "rows": [{",".join(rows[: question.rows_max])}]}}'


def question_of(aggregation: Aggregation, given: QueryParams) -> Question:
    """Read the parameters of a request. Raises HTTPException, which says what to write."""
    known = ["per", "from", "to", "by", "order", "limit", *aggregation.by]
    for name in given:
        if name not in known:
            raise HTTPException(400, f"unknown parameter {name!r}; known are {', '.join(known)}")
        if any("\0" in value for value in given.getlist(name)):
            raise HTTPException(400, f"the parameter {name} has a NUL; write a text without NUL")
        if name != "by" and len(given.getlist(name)) > 1:
            raise HTTPException(400, f"the parameter {name} is given twice; give it once")
    return Question(
        _one_of("per", given.get("per", aggregation.per[0]), aggregation.per),
        _keys(aggregation, given),
        {column: given[column] for column in aggregation.by if column in given},
        _time(aggregation, "from", given.get("from")),
        _time(aggregation, "to", given.get("to")),
        _one_of("order", given.get("order", "asc"), ("asc", "desc")) == "desc",
        _limit(given.get("limit", str(LIMIT))),
    )


def _keys(aggregation: Aggregation, given: QueryParams) -> tuple[str, ...]:
    if "by" not in given:
        return aggregation.by
    wanted = [name for name in given.getlist("by") if name]
    for name in wanted:
        _one_of("by", name, aggregation.by)
    return tuple(name for name in aggregation.by if name in wanted)


def _one_of(parameter: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise HTTPException(
            400, f"{parameter} is {value!r}, and not one of {', '.join(known) or 'none'}"
        )
    return value


def _time(aggregation: Aggregation, parameter: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise HTTPException(
            400, f"{parameter} is {text!r}, and not a time; write {_TIME}, and + as %2B"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(aggregation.time_zone))


def _limit(text: str) -> int:
    valid = text.isascii() and text.isdigit() and len(text) < 6
    if not valid or not 1 <= int(text) <= LIMIT_MAX:
        raise HTTPException(400, f"limit must be a number from 1 to {LIMIT_MAX}")
    return int(text)
