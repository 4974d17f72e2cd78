"""The conditions under which an operator wants a deployment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """The name of the operator, and the conditions of a deployment.

    ``on_change`` is as in ``types.Deployed``. Without ``allow_absent`` each peer of the config must
    be connected. ``expected`` is the number of the newest deployment that the operator saw, 0 if
    there was none, or None if any may be the newest. Without ``discard`` an application is removed
    only if its sinks have all output.
    """

    by: str
    on_change: str | None = None
    allow_absent: bool = False
    expected: int | None = None
    discard: bool = False
