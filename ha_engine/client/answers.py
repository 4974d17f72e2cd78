"""Read a node's answer over HTTP. Every command imports this module, so the module itself imports
only httpx."""

from __future__ import annotations

from typing import Any

import httpx


def body_of(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of the refusal ``answer``, which always has an ``error``."""
    body = object_of(answer)
    if body is not None and isinstance(body.get("error"), str):
        return body
    return {"error": f"the answer has status {answer.status_code} and no reason"}


def object_of(answer: httpx.Response) -> dict[str, Any] | None:
    """The JSON object of ``answer``, or None if a proxy before the node sent something else."""
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
