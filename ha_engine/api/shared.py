"""Share one encoded answer between requests that arrive at about the same time."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARED_SECONDS = 0.2
"""Maximum age of values that ``version`` does not cover: ages, and values of other stages."""


class SharedAnswer:
    """An encoded answer, made again when ``version`` returns another value or the answer is too
    old."""

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
