"""What a node's answer over HTTP says; loads no more than httpx, since every command reads some."""

from __future__ import annotations

from typing import Any

import httpx


def said_by(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of a refusal, with its ``error``."""
    said = object_of(answer)
    if said is not None and isinstance(said.get("error"), str):
        return said
    return {"error": f"status {answer.status_code} without an explanation"}


def object_of(answer: httpx.Response) -> dict[str, Any] | None:
    """Its JSON object; None where something between us and the node sent another."""
    try:
        said = answer.json()
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
