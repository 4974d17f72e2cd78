"""GET /openapi.json: the HTTP interface of a node as OpenAPI 3.1, made from its routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine import __version__
from ha_engine.operation import Answer, Operation, OperationRoute, Parameter

VERSION = "3.1.0"
_ABOUT = (
    "The HTTP interface of one node of a group. Any node answers about the group; events, "
    "switchovers and snapshots are the active's, and another node names it. Every refusal is a "
    "JSON object with the key 'error': 404 for any other path and 405 for any other method too."
)
_ITSELF = Operation(
    "openapi",
    "This document.",
    {200: Answer("OpenAPI 3.1.", dict[str, Any])},
)


def openapi_route(routes: Sequence[OperationRoute]) -> OperationRoute:
    """``GET /openapi.json``, about ``routes`` and itself."""

    async def tell(request: Request) -> JSONResponse:
        return JSONResponse(told)

    itself = OperationRoute("/openapi.json", tell, _ITSELF, "GET")
    told = document([*routes, itself])
    return itself


def document(routes: Sequence[OperationRoute]) -> dict[str, Any]:
    """The OpenAPI document of ``routes``."""
    schemas = _Schemas.of(routes)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {}).update(_item(route, schemas))
    return {
        "openapi": VERSION,
        "info": {"title": "ha_engine", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas.definitions},
    }


@dataclass(frozen=True)
class _Schemas:
    """JSON schemas of types; those with a name are told once, in ``definitions``."""

    by_type: list[tuple[Any, dict[str, Any]]]
    definitions: dict[str, Any]

    @classmethod
    def of(cls, routes: Sequence[OperationRoute]) -> _Schemas:
        types = [kind for route in routes for kind in _types(route.operation)]
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


def _item(route: OperationRoute, schemas: _Schemas) -> dict[str, Any]:
    """The operation under each of its methods; an answer to HEAD has no body."""
    methods = sorted(route.methods or ())
    return {method.lower(): _operation(route, method, schemas) for method in methods}


def _operation(route: OperationRoute, method: str, schemas: _Schemas) -> dict[str, Any]:
    operation = route.operation
    asked_by = "" if method in ("GET", "POST") else f"-{method.lower()}"
    told: dict[str, Any] = {
        "operationId": operation.name + asked_by,
        "summary": operation.says,
        "responses": {
            str(status): _answer(answer, schemas, has_body=method != "HEAD")
            for status, answer in operation.answers.items()
        },
    }
    if operation.takes:
        told["parameters"] = [_parameter(taken, schemas) for taken in operation.takes]
    if operation.body:
        told["requestBody"] = {
            "required": operation.needs_body,
            "content": _content(operation.body, schemas),
        }
    return told


def _parameter(taken: Parameter, schemas: _Schemas) -> dict[str, Any]:
    return {
        "name": taken.name,
        "in": taken.place,
        "required": taken.place == "path",
        "description": taken.means,
        "schema": schemas[taken.type],
    }


def _answer(answer: Answer, schemas: _Schemas, *, has_body: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"description": answer.means}
    if has_body:
        told["content"] = _content({answer.media_type: answer.body}, schemas)
    if answer.headers:
        told["headers"] = {
            header.name: {"description": header.means, "schema": schemas[header.type]}
            for header in answer.headers
        }
    return told


def _content(bodies: Any, schemas: _Schemas) -> dict[str, Any]:
    return {media_type: {"schema": schemas[kind]} for media_type, kind in bodies.items()}
