"""Import the library of an extra at its first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ha_engine.errors import EngineError


def library(module: str, extra: str, refused: type[EngineError]) -> ModuleType:
    """Return ``module``, or raise ``refused`` if the extra ``extra`` is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise refused(
            f"the package of {module} cannot be imported: {error}; install ha-engine[{extra}] on "
            "each node"
        ) from error
