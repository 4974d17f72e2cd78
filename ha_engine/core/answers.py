"""What others ask a core between its steps; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable

from ha_engine.core.following import Following
from ha_engine.core.forcing import Forcing
from ha_engine.core.lessee import Lessee
from ha_engine.core.life import Life
from ha_engine.core.own_journal import OwnJournal
from ha_engine.core.querying import Querying
from ha_engine.core.tenure import Tenure
from ha_engine.types import Role


class Answers:
    """The parts that ``Core`` is made of, and what can be asked of them at the time ``now``."""

    life: Life
    lessee: Lessee
    journal: OwnJournal
    querying: Querying
    following: Following
    forcing: Forcing
    now: float

    @property
    def role(self) -> Role:
        return self.life.role

    @property
    def why(self) -> str:
        """One sentence for status: what this node waits for, or why it is what it is."""
        return self.life.why

    @property
    def epoch(self) -> int:
        """The newest epoch that this process has held, 0 before any."""
        return self.life.epoch

    @property
    def tenure(self) -> Tenure | None:
        return self.life.tenure

    @property
    def acting(self) -> bool:
        """Whether this node holds an epoch."""
        return self.life.acting

    @property
    def stopping(self) -> bool:
        return self.life.stopping

    def may_act(self) -> bool:
        """RULES.md#i2: ack, publish and plan marks only while the lease carries it."""
        return self.authority_seconds(self.now) > 0

    def suspended(self, now: float | None = None) -> bool:
        """Past safe_until and not demoted: acts no more until a renewal succeeds (RULES.md#r15).

        ``now``: the process may have stood still since the last step.
        """
        seconds = self.authority_seconds(self.now if now is None else now)
        return self.role is Role.ACTIVE and seconds == 0

    def authority_seconds(self, now: float) -> float:
        """How long the publisher's next call may take; 0 when it must not start (RULES.md#r17)."""
        return 0.0 if self.tenure is None else self.tenure.authority_seconds(now)

    def why_no_switchover(self, to: str | None) -> str | None:
        """Why ``to``, or any member, cannot take over now; None when one can."""
        if self.tenure is None:
            return "this node is not the active"
        return self.tenure.why_no_switchover(self.now, to)

    def why_no_forced_failover(self, confirmed_off: Iterable[str]) -> str | None:
        """Why an operator must not force a failover to this node now; None when it may be
        (RULES.md#r26)."""
        if self.acting:
            return "this node is the active"
        if self.is_bound:
            return "this node is stopping, or cuts its journal"
        return self.forcing.why_not(self.now, self.life.connected, frozenset(confirmed_off))

    @property
    def receiving(self) -> bool:
        return self.tenure is not None and self.tenure.receiving

    @property
    def warm(self) -> bool:
        return self.querying.warm(self.journal.committed)

    @property
    def group_id(self) -> str | None:
        return self.lessee.group_id

    @property
    def is_bound(self) -> bool:
        """Whether this process must not take over any more."""
        gone = self.stopping or self.role is Role.STOPPED
        return gone or self.following.cutting
