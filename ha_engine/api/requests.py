"""Read the bodies of operators' HTTP requests, with a limit, and check them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ha_engine.web.route import JSON, Answer

BYTES_MAX = 64 << 10
"""Limit of a body, which needs only a few words."""

Word = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A text for the journal, the log and the database, which cannot store NUL."""
Model = TypeVar("Model", bound=BaseModel)

REFUSED = {
    400: Answer("The body is not valid."),
    413: Answer(f"The body has more than {BYTES_MAX} bytes."),
}
"""The refusals of ``read``."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SkipBody(_Asked):
    """The operator who skips a batch."""

    by: Word = Field(default="operator", description="Name of the operator; recorded.")


class SwitchoverBody(_Asked):
    """The node that takes over; without ``to``, any node that can."""

    to: Word | None = Field(default=None, description="Node that takes over.")
    by: Word = Field(default="operator", description="Name of the operator; recorded.")


class FailoverBody(_Asked):
    """The operator's consent to give up the records that this node does not have."""

    force: Literal[True] = Field(description="Always true: an automatic failover needs no request.")
    confirmed_fenced: tuple[Word, ...] = Field(
        default=(), description="Nodes that are certainly off."
    )
    by: Word = Field(default="operator", description="Name of the operator; recorded.")


async def read(request: Request, model: type[Model]) -> Model:
    """Read the body of ``request``, an empty one as ``{}``. Raises HTTPException: 400 or 413."""
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > BYTES_MAX:
            raise HTTPException(
                413, f"the body has more than {BYTES_MAX} bytes; send a smaller one"
            )
    try:
        return model.model_validate_json(bytes(raw) or b"{}")
    except ValidationError as error:
        raise HTTPException(400, _in_words(error)) from None


def body_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The content types that ``read`` accepts, with the type of the body."""
    return {JSON: model}


def _in_words(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if place == "force":
        return (
            "a failover needs no request; send force: true to give up the records that this node "
            "does not have, or POST /v1/switchover to change the active without loss"
        )
    return f"{place}: {first['msg']}" if place else first["msg"]
