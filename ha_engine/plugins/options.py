"""Read the options of a plug-in from an application file, with the secrets that they refer to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ha_engine.config.load import dereferenced
from ha_engine.errors import ConfigError


def options_of(
    where: str, model: type[BaseModel], written: Mapping[str, Any], base: Path
) -> BaseModel:
    """Convert the options to the plug-in's ``model``; ``where`` names the plug-in in an error.

    Raises ConfigError, whose text contains no value of an option.
    """
    return validated(where, model, resolved(where, written, base))


def resolved(where: str, written: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The options with the secrets that they refer to. Raises ConfigError."""
    return {key: _resolved(value, base, where) for key, value in written.items()}


def validated(where: str, model: type[BaseModel], options: Mapping[str, Any]) -> BaseModel:
    """Convert options without references to ``model``. Raises ConfigError as ``options_of``."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        # The error leaves out the values of options, because a value may be a secret.
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(map(str, found["loc"]))
        raise ConfigError(f"{where}: {key}: {found['msg']}") from None
    except Exception as error:  # a validator is other people's code; its text may have a value
        raise ConfigError(f"{where} cannot be opened: {type(error).__name__}") from error


def _resolved(value: Any, base: Path, where: str) -> Any:
    match value:
        case dict():
            return {key: _resolved(part, base, where) for key, part in value.items()}
        case list():
            return [_resolved(part, base, where) for part in value]
        case str():
            found = dereferenced(value, base, os.environ)
            if found is None:
                raise ConfigError(f"{where} refers to {value}, which is missing; provide it")
            return found
        case _:
            return value
