"""The selection that ``make test`` runs; ``make test-all`` runs all at night and before a release.

``-m 'not nightly'`` leaves out the tests marked ``nightly``, and of a test marked ``rotates`` all
cases but a share, or of a module marked ``rotates("file")`` all tests but a share. Of the modules
marked ``rotates("files")`` it runs a share. The share changes each day: the header names it, and
``--share 3/8`` repeats it. ``--thorough`` plays all seeds of the simulator.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import date

import pytest

from tests import class_archive

SHARES = 8
SEEDS, THOROUGH_SEEDS = 200, 2000
NIGHTLY = "nightly"
_ELSEWHERE = "another day's share of 'make test' runs it"
_LONG = ("spark", "slow")


@dataclass(frozen=True, slots=True)
class Share:
    """The cases ``number - 1``, ``number - 1 + of``, ... of each test."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, case: int) -> bool:
        return case % self.of == self.number - 1


def share_of(word: str) -> Share:
    """Parse ``3/8`` as a share. Raises ValueError."""
    number, _, of = word.partition("/")
    share = Share(int(number), int(of))
    if not 1 <= share.number <= share.of:
        raise ValueError(f"{word} is no share; 1/8 to 8/8 are those of eight")
    return share


def todays() -> Share:
    return Share(date.today().toordinal() % SHARES + 1, SHARES)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--thorough", action="store_true", help="every seed of the simulator")
    group.addoption("--share", type=share_of, default=todays(), help="of rotating cases, as 3/8")


def hasten_spark(config: pytest.Config) -> None:
    """Speed up the start of Spark, since it lives for a minute in most tests. With ``--thorough``
    it starts and compiles as for users."""
    if not config.getoption("thorough"):
        os.environ.update(class_archive.environment())


def header(config: pytest.Config) -> str:
    return f"rotating cases: --share {config.getoption('share')}; simulator: {seeds(config)} seeds"


def seeds(config: pytest.Config) -> int:
    """Return the number of histories that the simulator plays."""
    return THOROUGH_SEEDS if config.getoption("thorough") else SEEDS


def sort_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of other shares as nightly; put the long files first, for workers to share."""
    share: Share = config.getoption("share")
    files = sorted({item.path for item in items if _rotating(item) == "files"})
    cases: Counter[str] = Counter()
    for item in items:
        unit = _rotating(item)
        rotating = str(item.path) if unit == "file" else item.nodeid.partition("[")[0]
        number = files.index(item.path) if unit == "files" else cases[rotating]
        if unit is not None and not share.has(number):
            item.add_marker(pytest.mark.nightly(_ELSEWHERE))
        cases[rotating] += 1
        for mark in item.iter_markers(NIGHTLY):
            if not (len(mark.args) == 1 and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid} is nightly without a reason")
    long = {item.path for item in items if any(map(item.get_closest_marker, _LONG))}
    items.sort(key=lambda item: item.path not in long)


def _rotating(item: pytest.Item) -> str | None:
    """Return what runs a share each day: the test's cases, the file's tests or the files."""
    mark = item.get_closest_marker("rotates")
    if mark is None:
        return None
    return mark.args[0] if mark.args else "cases"
