"""Check sections and names, and write the error texts, for all parts of an application file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a name; use at most 63 letters, digits and _, and no digit first"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
"""The name of a stream, column, query, sink or application."""


class Section(BaseModel):
    """A section of the application file, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def nearest(word: str, known: Mapping[str, object] | list[str]) -> str:
    """The end of an error about an unknown name: the nearest known name, or all known names."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def found(error: ValidationError) -> list[ErrorDetails]:
    """All errors that pydantic found."""
    return error.errors(include_url=False, include_context=False)


def most_telling(found: list[ErrorDetails]) -> ErrorDetails:
    """The first error about an unknown key, or else the first error.

    Pydantic reports a misspelt key both as unknown and as missing; the user must see the
    misspelling.
    """
    return min(found, key=lambda one: one["type"] != "extra_forbidden")


def sentence(found: list[ErrorDetails], keys_at: Callable[[list[str]], list[str]]) -> str:
    """Describe the most telling error that pydantic found, in terms of the application file."""
    first = most_telling(found)
    place = [str(part) for part in first["loc"]]
    where = ".".join(place) or "the file"
    match first["type"]:
        case "extra_forbidden":
            return f"{where} is not a known key{nearest(place[-1], keys_at(place[:-1]))}"
        case "missing":
            return f"{where} is missing"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"{where} must be a mapping of keys to values"
        case "value_error":
            return f"{where}: {first['msg'].removeprefix('Value error, ')}"
        case _:
            instead = f", not {first['input']!r}" if "input" in first else ""
            return f"{where}: {first['msg']}{instead}"


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of ``model`` as they are written in the application file."""
    return [spec.alias or name for name, spec in model.model_fields.items()]
