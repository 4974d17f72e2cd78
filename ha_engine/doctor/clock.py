"""Check the clock of this host.

No decision of the engine compares the clocks of two hosts. But logs, the history of the lease and
the dates of certificates are wrong with a wrong clock.
"""

from __future__ import annotations

import ctypes
import time

from sqlalchemy import Connection, text

from ha_engine.config import Config
from ha_engine.doctor.database import ask
from ha_engine.doctor.finding import Finding, failed, ok, skipped, warning

WARNING_SECONDS, FAILED_SECONDS = 1.0, 60.0
_READINGS = 3
_TIMEX_BYTES = 512
"""More than the size of ``struct timex`` of adjtimex(2)."""
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""
_REMEDY = "synchronise the clock of this host and of the database's host, for example with chrony"


def against_database(config: Config) -> Finding:
    """The difference between the clock of this host and the clock of the database."""
    return judged(*ask(config, _read_difference))


def judged(difference: float, uncertainty: float) -> Finding:
    """The finding for a difference of two clocks, both in seconds."""
    text = (
        f"the clock of this host differs by {difference:+.3f} s (± {uncertainty:.3f} s) from the "
        "clock of the database"
    )
    certain = abs(difference) - uncertainty
    if certain >= FAILED_SECONDS:
        return failed(text, _REMEDY)
    return warning(text, _REMEDY) if certain >= WARNING_SECONDS else ok(text)


def synchronised() -> Finding:
    """Whether the kernel considers its clock synchronised, see adjtimex(2)."""
    # A buffer of zeros asks for the state, and changes nothing.
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        return skipped("the kernel does not tell whether the clock is synchronised")
    if state == _UNSYNCHRONISED:
        return warning("no program synchronises the clock of this host", _REMEDY)
    return ok("the clock of this host is synchronised")


def _read_difference(connection: Connection) -> tuple[float, float]:
    """The difference in seconds, and the uncertainty: half the time of the fastest reading."""
    readings = []
    for _ in range(_READINGS):
        before = time.time()
        theirs = connection.scalar(
            text("SELECT extract(epoch FROM clock_timestamp())::double precision")
        )
        after = time.time()
        readings.append(((after - before) / 2, (before + after) / 2 - float(theirs or 0)))
    uncertainty, difference = min(readings)
    return difference, uncertainty
