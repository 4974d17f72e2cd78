"""Read and check the bodies of operators' HTTP requests, up to a size limit."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from ha_engine.types import STATE_PARTITIONS_MAX
from ha_engine.web.route import JSON, Answer

BYTES_MAX = 64 << 10
"""Limit of a body, which needs only a few words."""
WITHIN_SECONDS = 10.0

Text = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A text for the journal, the log and the database, which cannot store NUL."""
Model = TypeVar("Model", bound=BaseModel)

REFUSED = {
    400: Answer("The body is not valid."),
    408: Answer("The body did not arrive in time."),
    413: Answer(f"The body has more than {BYTES_MAX} bytes."),
}
"""The refusals of ``read``."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SkipBody(_Asked):
    """The body of a request to skip a batch."""

    by: Text = Field(
        default="operator", description="Name of the operator, which the node records."
    )


class RescaleBody(_Asked):
    """The body of a request to change the number of partitions of a query's state."""

    partitions: int = Field(
        ge=1, le=STATE_PARTITIONS_MAX, description="Number of partitions of the query's state."
    )


class SwitchoverBody(_Asked):
    """The body of a request for a switchover. Without ``to``, any node that can take over becomes
    the active."""

    to: Text | None = Field(default=None, description="Node that takes over.")
    by: Text = Field(
        default="operator", description="Name of the operator, which the node records."
    )


class FailoverBody(_Asked):
    """The operator's consent to lose the records that this node does not have."""

    force: Literal[True] = Field(description="Must be true, as the consent to a possible loss.")
    confirmed_fenced: tuple[Text, ...] = Field(
        default=(), description="Nodes that are certainly off."
    )
    by: Text = Field(
        default="operator", description="Name of the operator, which the node records."
    )


async def read(request: Request, model: type[Model]) -> Model:
    """Read the body of ``request`` as a ``model``. An empty body counts as ``{}``. Raises
    HTTPException with a status of REFUSED."""
    raw = await read_bytes(request, BYTES_MAX)
    try:
        return model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise HTTPException(400, _in_sentences(error)) from None


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """Read the body of ``request``. Raises HTTPException with a status of REFUSED."""
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            return await _body(request, bytes_max)
    except TimeoutError:
        reason = f"the body did not arrive within {WITHIN_SECONDS:g} s"
        raise HTTPException(408, reason, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the body ends too early") from None


async def _body(request: Request, bytes_max: int) -> bytes:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > bytes_max:
            raise HTTPException(
                413, f"the body has more than {bytes_max} bytes; send a smaller one"
            )
    return bytes(raw)


def body_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The content type that ``read`` accepts, with ``model`` as the type of the request body."""
    return {JSON: model}


def _in_sentences(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if place == "force":
        return (
            "force must be true, to give up the records that this node does not have; to change "
            "the active without loss, send POST /v1/switchover instead"
        )
    return f"{place}: {first['msg']}" if place else first["msg"]
