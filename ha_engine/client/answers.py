"""Read a node's answer over HTTP. The module imports only httpx, because every command uses it."""

from __future__ import annotations

from typing import Any

import httpx


def said_by(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of a refusal, with its ``error``."""
    said = object_of(answer)
    if said is not None and isinstance(said.get("error"), str):
        return said
    return {"error": f"status {answer.status_code} without a reason"}


def object_of(answer: httpx.Response) -> dict[str, Any] | None:
    """Its JSON object; None if a proxy between us and the node sent something else."""
    try:
        said = answer.json()
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
