"""What an operator asks of a node: refused here with a sentence, or handed to the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ha_engine.core import Core, QueryState
from ha_engine.core import inputs as on
from ha_engine.core.queries import UNDECIDED
from ha_engine.types import Role


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """Each answers why not; empty when it is on its way."""

    core: Core
    handle: Callable[[on.Input], None]

    def switch_over(self, to: str | None, by: str) -> str:
        refusal = self.core.why_no_switchover(to)
        if refusal is None:
            self.handle(on.SwitchoverAsked(to, by))
        return refusal or ""

    def skip(self, query: str, by: str) -> str:
        refusal = self._why_not(query, "skip", needs_active=True)
        if not refusal:
            self.handle(on.SkipAsked(query, by))
        return refusal

    def retry(self, query: str) -> str:
        refusal = self._why_not(query, "retry", needs_active=False)
        if not refusal:
            self.handle(on.RetryAsked(query))
        return refusal

    def _why_not(self, query: str, what: str, *, needs_active: bool) -> str:
        life = self.core.deployment.lives[query]
        if life.state is not QueryState.FAILED:
            return f"query {query} has not failed; there is nothing to {what}"
        if needs_active and self.core.role is not Role.ACTIVE:
            return "this node is not active; ask the active"
        if life.failure is not None and life.failure.reason == UNDECIDED:
            return f"query {query} waits for a decision and not for a {what}: {UNDECIDED}"
        return ""
