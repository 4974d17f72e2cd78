"""Judge ``Core.wake_at``: a Tick before that moment does nothing, and one at it does something.

So a driver may sleep until then, however long that is, and no wake-up is needless.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from array import array
from collections import Counter, OrderedDict, deque
from enum import Enum
from typing import Any

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from tests.core.truth import require

IDLE_IN_A_ROW_MAX = 20
"""The limit of requested Ticks that did nothing. A moment at which a condition may change need not
change anything, but not every Tick may request the next."""

OF_THE_STEP = {"now", "out"}
# Compare exact types: this walk takes a third of the time of a simulated history.
_AS_IT_IS = {type(None), bool, int, float, str, bytes, frozenset}
_IN_ORDER, _BY_KEY, _COPIED = {tuple, list, deque}, {dict, OrderedDict, Counter}, {set, array}


def state_of(thing: Any, seen: set[int] | None = None) -> Any:
    """Return the state of a part of a core, in a form that can be compared later."""
    kind = type(thing)
    if kind in _AS_IT_IS:
        return thing
    seen = set() if seen is None else seen
    if kind in _IN_ORDER:
        return [state_of(one, seen) for one in thing]
    if kind in _BY_KEY:
        return {key: state_of(value, seen) for key, value in thing.items()}
    if kind in _COPIED:
        return copy.copy(thing)
    if _never_changes(kind):
        return thing
    if id(thing) in seen or not hasattr(thing, "__dict__"):
        return None
    seen.add(id(thing))
    known = vars(thing).items()
    return {name: state_of(value, seen) for name, value in known if name not in OF_THE_STEP}


@functools.cache
def _never_changes(kind: type) -> bool:
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen or issubclass(kind, Enum)


class Wakefulness:
    """The judge of one node process. ``counts``: Ticks that were not due, and those that were."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._idle = 0

    def step(self, core: Any, now: float, event: on.Input) -> list[do.Action]:
        """The step of ``core``, judged if it is a Tick."""
        if not isinstance(event, on.Tick):
            self._idle = 0
            return list(core.step(now, event))
        due, before = now >= core.wake_at(), state_of(core)
        actions = list(core.step(now, event))
        idle = not actions and before == state_of(core)
        if not due:
            self.counts["early"] += 1
            # Two states are long to describe, so print only the difference.
            what = "" if idle else f"led to {actions}, {_changed(before, state_of(core))}"
            require(idle, "wake_at", f"a Tick before it {what}")
            return actions
        self.counts["due"] += 1
        self._idle = self._idle + 1 if idle else 0
        self.counts["idle"] += idle
        again = core.wake_at()
        require(not idle or again > now, "wake_at", f"a Tick at {now} did nothing and asks again")
        require(self._idle < IDLE_IN_A_ROW_MAX, "wake_at", f"{self._idle} Ticks did nothing")
        return actions


def _changed(before: Any, after: Any, path: str = "core") -> str:
    """Return the first path at which two states differ."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        parts = [_changed(before[key], after[key], f"{path}.{key}") for key in before]
        return "; ".join(part for part in parts if part)
    return "" if before == after else f"{path} was {before} and is {after}"
