"""GET /openapi.json has exactly the routes of a node; bodies conform to it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from ha_engine import errors
from ha_engine.api.cluster import cluster_of, report_of
from ha_engine.api.cluster_body import Cluster
from ha_engine.api.requests import BYTES_MAX
from ha_engine.receive.http import Endpoint
from ha_engine.sync import Hello
from ha_engine.web.route import OperationRoute
from tests.core.world import World
from tests.still_node import still_node
from tests.sync.pair import hello

REFUSALS = [
    errors.InvalidEvents("it is no number", 3),
    errors.InvalidEvents("it is empty"),
    errors.UnknownStream("no such stream"),
    errors.PayloadTooLarge("too large"),
    errors.BodyTooSlow("too slow"),
    errors.UnsupportedFormat("not read"),
    errors.SequenceConflict("used"),
    errors.SequenceForgotten("forgotten"),
    errors.Backpressure("full", 0.5),
    errors.TooManyProducers("too many", 10.0),
    errors.NotActive("joins", "http://b:1"),
]


@pytest.fixture
def served() -> Starlette:
    return still_node()


async def ask(served: Starlette, method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(method, path, **more)


async def test_document_has_exactly_the_routes_and_methods_of_a_node(served: Starlette) -> None:
    told = (await ask(served, "GET", "/openapi.json")).json()
    assert told["openapi"].startswith("3.1.")
    there = {
        (route.path, method.lower())
        for route in served.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert len(there) > 30
    assert {(path, method) for path, item in told["paths"].items() for method in item} == there


async def test_document_defines_every_path_parameter_and_reference(
    served: Starlette,
) -> None:
    told = (await ask(served, "GET", "/openapi.json")).json()
    names = []
    for path, item in told["paths"].items():
        for operation in item.values():
            names.append(operation["operationId"])
            taken = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert taken == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    assert len(names) == len(set(names))
    text = json.dumps(told)
    schemas = told["components"]["schemas"]
    assert all(f'"#/components/schemas/{name}"' in text for name in schemas)
    assert text.count('"$ref"') == text.count('"$ref": "#/components/schemas/')
    assert {"Status", "Cluster", "Refusal", "SwitchoverBody"} <= schemas.keys()
    assert (
        schemas["Status"]["properties"]["disk_headroom_ok"]["description"]
        == "The disk has room for events."
    )


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
@pytest.mark.parametrize("path", ["events", "cloudevents", "remote-write"])
def test_every_refusal_of_events_conforms_to_the_document(
    served: Starlette, path: str, refusal: Any
) -> None:
    route = next(one for one in served.routes if str(getattr(one, "path", "")).endswith(f"/{path}"))
    assert isinstance(route, OperationRoute)
    assert isinstance(route.app, Endpoint)
    given = route.app.answer_to(refusal)
    answer = route.operation.answers[given.status]
    body = json.loads(given.body)
    assert TypeAdapter(answer.body).validate_python(body, strict=True) == body
    headers = {name.decode() for name, _ in given.headers}
    assert {header.name.lower() for header in answer.headers} <= headers


def test_conformance_test_covers_each_kind_of_refusal() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    before_the_route = {errors.Rejected, errors.NotAllowed}
    assert below(errors.Rejected) - before_the_route == {type(refusal) for refusal in REFUSALS}


def test_cluster_body_with_a_silent_peer_conforms_to_its_type() -> None:
    class Links:
        def names(self) -> list[str]:
            return ["b"]

        def hellos(self) -> dict[str, Hello]:
            return {"a": hello("a")}

        def reports(self) -> dict[str, Any]:
            return {}

        refusals = unreachable = silent_seconds = reports

    world = World()
    world.start()
    tree = cluster_of(world.core, "g", report_of(world.core, world.now, 0), Links())
    assert TypeAdapter(Cluster).validate_python(tree, strict=True) == tree


async def test_unsupported_method_is_answered_with_the_supported_ones(
    served: Starlette,
) -> None:
    answer = await ask(served, "DELETE", "/v1/snapshot")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert answer.json() == {"error": "DELETE /v1/snapshot: method not allowed"}


async def test_path_with_a_trailing_slash_is_another_path(served: Starlette) -> None:
    assert (await ask(served, "GET", "/v1/status/")).status_code == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "Invalid JSON"),
        (b'{"by": "\\u0000"}', "by: String should match"),
        (b'{"by": ""}', "by: String should have at least 1"),
        (b'{"by": 7}', "by: Input should be a valid string"),
        (b'{"whom": "b"}', "whom: Extra inputs"),
        (b"[]", "be an object"),
        (b"[" * BYTES_MAX, "recursion"),
    ],
)
async def test_malformed_body_of_an_operator_is_refused_with_its_key(
    served: Starlette, body: bytes, reason: str
) -> None:
    answer = await ask(served, "POST", "/v1/queries/delays/skip", content=body)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


async def test_body_of_an_operator_request_is_bounded(served: Starlette) -> None:
    answer = await ask(served, "POST", "/v1/switchover", content=b" " * (BYTES_MAX + 1))
    assert answer.status_code == 413
    assert answer.json()["error"] == f"the body has more than {BYTES_MAX} bytes; send a smaller one"
