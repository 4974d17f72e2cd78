"""One encoded answer for all who ask at about the same time: what is asked often is made seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARED_SECONDS = 0.2
"""So old may be what no ``version`` counts: ages, and what other stages say of themselves."""


class SharedAnswer:
    """Calls ``make`` again once ``version`` differs, or the answer is old."""

    def __init__(
        self,
        make: Callable[[], bytes],
        version: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._version, self._clock = make, version, clock
        self._made: tuple[object, float, bytes] | None = None

    def body(self) -> bytes:
        version, now, made = self._version(), self._clock(), self._made
        if made is not None and made[0] == version and now < made[1] + SHARED_SECONDS:
            return made[2]
        body = self._make()
        self._made = version, now, body
        return body
