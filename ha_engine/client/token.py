"""The token with which a client says who it is: of the environment, never of a command line, which
every user of the host can read."""

from __future__ import annotations

import os

TOKEN_VARIABLE = "HA_ENGINE_TOKEN"


def authorization() -> dict[str, str]:
    """The header; none without a token."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    return {"authorization": f"Bearer {token}"} if token else {}
