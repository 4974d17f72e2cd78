"""GET /openapi.json: describe the HTTP interface of a node as OpenAPI 3.1, from its routes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ha_engine import __version__
from ha_engine.auth import Right
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter, Refusal

VERSION = "3.1.0"
_ABOUT = (
    "The HTTP interface of one node of a group. Any node shows the state of the group. Only the "
    "active takes events, switchovers and snapshots; another node refuses them and names the "
    "active. Every refusal is a JSON object with the key 'error', including 404 for an unknown "
    "path and 405 for another method."
)
_ITSELF = Operation(
    "openapi",
    "Show this document.",
    {200: Answer("The document, in OpenAPI 3.1.", dict[str, Any])},
    needs=Right.READ,
)
_DENIED = {
    401: Answer("The request has no token, or an unknown one."),
    403: Answer("The token does not give the right to send this request."),
}
_ANOTHER_HOST = {
    421: Answer("The request has no token, and its Host header does not name this node."),
}
_BEARER = {"bearer": {"type": "http", "scheme": "bearer"}}


def openapi_route(routes: Sequence[OperationRoute], about: str = _ABOUT) -> OperationRoute:
    """The route ``GET /openapi.json``, which describes ``routes`` and itself, and says what the
    interface is ``about``. The answer says which routes need a token under the present config."""

    async def show(request: Request) -> Response:
        body = document_for(request.app.state.access.guarded)
        return Response(body, media_type=JSONResponse.media_type)

    @lru_cache(maxsize=1)
    def document_for(rights: frozenset[Right]) -> bytes:
        return bytes(JSONResponse(document([*routes, itself], rights, about)).body)

    itself = OperationRoute("/openapi.json", show, _ITSELF, "GET")
    return itself


def document(
    routes: Sequence[OperationRoute], rights: Collection[Right], about: str
) -> dict[str, Any]:
    """The OpenAPI document of ``routes``. An operation that needs one of ``rights`` needs a
    token."""
    schemas = _Schemas.of(routes)
    paths: dict[str, Any] = {}
    for route in routes:
        # Nobody has the right to deploy without a token.
        guarded = route.operation.needs in {*rights, Right.DEPLOY}
        paths.setdefault(route.path, {}).update(_item(route, schemas, guarded=guarded))
    return {
        "openapi": VERSION,
        "info": {"title": "ha_engine", "version": __version__, "description": about},
        "paths": paths,
        "components": {"schemas": schemas.definitions, "securitySchemes": _BEARER},
    }


@dataclass(frozen=True)
class _Schemas:
    """JSON schemas of types. The dict ``definitions`` has the schema of each named type once."""

    by_type: list[tuple[Any, dict[str, Any]]]
    definitions: dict[str, Any]

    @classmethod
    def of(cls, routes: Sequence[OperationRoute]) -> _Schemas:
        types = [Refusal, *(kind for route in routes for kind in _types(route.operation))]
        found, rest = TypeAdapter.json_schemas(
            [(number, "validation", TypeAdapter(kind)) for number, kind in enumerate(types)],
            ref_template="#/components/schemas/{model}",
        )
        schemas = [(kind, found[number, "validation"]) for number, kind in enumerate(types)]
        return cls(schemas, rest.get("$defs", {}))

    def __getitem__(self, wanted: Any) -> dict[str, Any]:
        return next(schema for kind, schema in self.by_type if kind is wanted)


def _types(operation: Operation) -> Iterator[Any]:
    yield from (taken.type for taken in operation.takes)
    yield from operation.body.values()
    for answer in operation.answers.values():
        yield answer.body
        yield from (header.type for header in answer.headers)


def _item(route: OperationRoute, schemas: _Schemas, *, guarded: bool) -> dict[str, Any]:
    """The OpenAPI operation of ``route`` for each of its methods. An answer to HEAD has no body."""
    methods = sorted(route.methods or ())
    return {one.lower(): _operation(route, one, schemas, guarded=guarded) for one in methods}


def _operation(
    route: OperationRoute, method: str, schemas: _Schemas, *, guarded: bool
) -> dict[str, Any]:
    operation = route.operation
    checked = {} if operation.needs is Right.NOTHING else _ANOTHER_HOST
    answers = {**operation.answers, **(_DENIED if guarded else {}), **checked}
    asked_by = "" if method in ("GET", "POST") else f"-{method.lower()}"
    operation_object: dict[str, Any] = {
        "operationId": operation.name + asked_by,
        "summary": operation.says,
        "responses": {
            str(status): _answer(answer, schemas, has_body=method != "HEAD")
            for status, answer in answers.items()
        },
    }
    if guarded:
        operation_object["security"] = [{"bearer": []}]
    if operation.takes:
        operation_object["parameters"] = [_parameter(taken, schemas) for taken in operation.takes]
    if operation.body:
        operation_object["requestBody"] = {
            "required": operation.needs_body,
            "content": _content(operation.body, schemas),
        }
    return operation_object


def _parameter(taken: Parameter, schemas: _Schemas) -> dict[str, Any]:
    return {
        "name": taken.name,
        "in": taken.place,
        "required": taken.place == "path",
        "description": taken.means,
        "schema": schemas[taken.type],
    }


def _answer(answer: Answer, schemas: _Schemas, *, has_body: bool) -> dict[str, Any]:
    response_object: dict[str, Any] = {"description": answer.means}
    if has_body and answer.body is not None:
        response_object["content"] = _content({answer.media_type: answer.body}, schemas)
    if answer.headers:
        response_object["headers"] = {
            header.name: {"description": header.means, "schema": schemas[header.type]}
            for header in answer.headers
        }
    return response_object


def _content(bodies: Any, schemas: _Schemas) -> dict[str, Any]:
    return {media_type: {"schema": schemas[kind]} for media_type, kind in bodies.items()}
