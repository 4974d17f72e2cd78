"""The rights over HTTP: each route of a node requires a token with its right."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ha_engine.auth import OPEN, Access, Right, digest_of
from ha_engine.cli.root import program
from ha_engine.config.access import AccessConfig
from ha_engine.web.route import OperationRoute
from tests.still_node import still_node

TOKENS = {
    "deploys": Right.DEPLOY,
    "rules": Right.ADMIN,
    "sends": Right.INGEST,
    "reads": Right.READ,
}
GUARDED = Access.of({right: {token: digest_of(token)} for token, right in TOKENS.items()})
ADMIN_ONLY = Access.of({Right.ADMIN: {"rules": digest_of("rules")}})

EVERY_ROUTE = [
    pytest.param(route.path, method, route.operation.needs, id=f"{method} {route.path}")
    for route in still_node().routes
    if isinstance(route, OperationRoute)
    for method in sorted(route.methods or ())
]


async def ask(access: Access, method: str, path: str, *authorization: str) -> httpx.Response:
    # A route that admits the request may fail here, since no node is behind it.
    transport = httpx.ASGITransport(still_node(access), raise_app_exceptions=False)
    headers = [("Authorization", one) for one in authorization]
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(method, path, headers=headers)


def test_routes_that_change_the_group_need_admin_and_ingest_does_not() -> None:
    needs = {(param.values[1], param.values[0]): param.values[2] for param in EVERY_ROUTE}
    posts = {path: right for (method, path), right in needs.items() if method == "POST"}
    for protocol in ("events", "cloudevents", "remote-write"):
        assert posts.pop(f"/v1/streams/{{stream}}/{protocol}") is Right.INGEST
    for path in (
        "application",
        "application/{name}/remove",
        "queries/{query}/promote",
        "queries/{query}/discard",
    ):
        assert posts.pop(f"/v1/{path}") is Right.DEPLOY
    assert len(posts) >= 7
    assert set(posts.values()) == {Right.ADMIN}
    assert Right.ADMIN not in {right for (method, _), right in needs.items() if method == "GET"}


@pytest.mark.parametrize(("path", "method", "needs"), EVERY_ROUTE)
async def test_each_route_requires_its_right(path: str, method: str, needs: Right) -> None:
    bare = (await ask(GUARDED, method, path)).status_code
    assert (bare == 401) == (needs is not Right.NOTHING)
    for token, right in TOKENS.items():
        status = (await ask(GUARDED, method, path, f"Bearer {token}")).status_code
        admin = right is Right.ADMIN and needs is not Right.DEPLOY
        may = needs is Right.NOTHING or right in (needs, Right.DEPLOY) or admin
        assert (status in (401, 403)) == (not may), (token, status)


async def test_nobody_deploys_where_every_caller_may_do_everything() -> None:
    answer = await ask(OPEN, "POST", "/v1/application")
    assert answer.status_code == 401
    assert answer.json()["error"].startswith("this request needs a token for deploy")
    assert (await ask(ADMIN_ONLY, "POST", "/v1/application", "Bearer rules")).status_code == 403


@pytest.mark.parametrize(
    "said", ["", "rules", "Basic rules", "Bearer", "Bearer unknown", "Bearer "]
)
async def test_invalid_token_is_401_with_the_expected_header(said: str) -> None:
    answer = await ask(GUARDED, "POST", "/v1/pause", said)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.json() == {
        "error": "this request needs a token for admin: Authorization: Bearer ..."
    }


async def test_token_with_another_right_is_403_and_names_the_right() -> None:
    answer = await ask(GUARDED, "POST", "/v1/pause", "Bearer sends")
    assert answer.status_code == 403
    assert answer.json() == {
        "error": "this token is for ingest, but this request needs one for admin"
    }


async def test_other_routes_are_open_when_only_admins_have_tokens() -> None:
    assert (await ask(ADMIN_ONLY, "GET", "/v1/status")).status_code == 200
    assert (await ask(ADMIN_ONLY, "GET", "/metrics")).status_code == 200
    assert (await ask(ADMIN_ONLY, "POST", "/v1/switchover")).status_code == 401


async def test_openapi_document_names_the_routes_that_need_a_token() -> None:
    told: dict[str, Any] = (await ask(ADMIN_ONLY, "GET", "/openapi.json")).json()
    assert told["paths"]["/v1/pause"]["post"]["security"] == [{"bearer": []}]
    assert {"401", "403"} <= set(told["paths"]["/v1/pause"]["post"]["responses"])
    assert "security" not in told["paths"]["/v1/status"]["get"]
    assert told["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_generated_token_has_the_right_of_its_digest() -> None:
    made = dict(
        line.split()
        for line in CliRunner().invoke(program(), ["config", "token"]).output.splitlines()
    )
    config = AccessConfig(admin={"alice": made["sha256"]})
    access = Access.of({Right.ADMIN: config.admin})
    assert access.denial(Right.ADMIN, f"Bearer {made['token']}") is None
    assert access.denial(Right.ADMIN, f"Bearer {made['sha256']}") is not None


def test_tokens_without_one_for_admin_are_refused() -> None:
    with pytest.raises(ValueError, match=r"access\.admin"):
        AccessConfig(ingest={"sensors": digest_of("sends")})


@pytest.mark.parametrize(
    "given",
    [
        {"admin": {"a": digest_of("x")}, "ingest": {"b": digest_of("x")}},
        {"admin": {"a": digest_of("x"), "b": digest_of("x")}},
        {"admin": {"a": digest_of("")}},
    ],
    ids=["two rights", "two names", "nothing"],
)
def test_duplicate_or_empty_token_digest_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="digest"):
        AccessConfig(**given)


async def test_no_digest_admits_a_request_without_a_token() -> None:
    careless = Access.of({Right.ADMIN: {"a": digest_of(""), "b": digest_of("x")}})
    twice = Access.of({Right.ADMIN: {"a": digest_of("x")}, Right.INGEST: {"a": digest_of("x")}})
    for access in (careless, twice):
        assert (await ask(access, "POST", "/v1/switchover")).status_code == 401


def test_token_in_the_place_of_its_digest_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        AccessConfig(admin={"alice": "my-secret-token"})
    assert "my-secret-token" not in str(refused.value)
