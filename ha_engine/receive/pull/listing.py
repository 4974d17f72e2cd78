"""List the files of a directory in the order of their names, as far as the list is certainly
complete.

A listing that runs while files arrive may miss one file and contain a later one. A listing contains
every file that existed before the listing began. A file is read only after a second listing, which
begins after a first listing has found the file. The second listing also contains every file that
arrived before that file.
"""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase
from pathlib import Path

from ha_engine.errors import SourceUnavailable

LOOK_EVERY_SECONDS = 0.2
LOOKING_PART_MAX = 0.1
"""Listing takes at most this fraction of the time, so a slow directory is listed less often."""


class Listing:
    """Lists a directory without drafts (``.name`` and ``name.part``), empty files and the names in
    ``skip``."""

    def __init__(self, directory: Path, pattern: str, skip: tuple[str, ...]) -> None:
        self._directory, self._pattern, self._skip = directory, pattern, frozenset(skip)
        self._sizes: dict[str, int] | None = None
        self._certain_through = ""
        self._next_look = float("-inf")
        self._late: list[str] = []

    def look(self, read_through: str, *, now: bool = False) -> None:
        """List the directory again, if the time of the next listing has come or ``now`` is true.
        Raises SourceUnavailable."""
        began = time.monotonic()
        if began < self._next_look and not now:
            return
        before, self._sizes = self._sizes, self._list()
        took = time.monotonic() - began
        self._next_look = began + max(LOOK_EVERY_SECONDS, took / LOOKING_PART_MAX)
        if before is not None:
            self._certain_through = max(before, default="")
            self._late += [n for n in self._sizes if n not in before and n < read_through]

    def take_late(self) -> list[str]:
        """The names of files that appeared after a later name was read; each name is returned
        once."""
        late, self._late = sorted(self._late), []
        return late

    def next_after(self, name: str) -> str | None:
        """The first file after ``name``, in the order of names."""
        found = self._first_after(name)
        if found is not None and found > self._certain_through:
            self.look(name, now=True)
            found = self._first_after(name)
        return found

    def bytes_after(self, name: str) -> int:
        return sum(size for one, size in (self._sizes or {}).items() if one > name)

    def _first_after(self, name: str) -> str | None:
        return min((one for one in self._sizes or () if one > name), default=None)

    def _list(self) -> dict[str, int]:
        try:
            with os.scandir(self._directory) as entries:
                sizes = {e.name: _size(e) for e in entries if self._is_wanted(e.name)}
        except FileNotFoundError as error:
            raise SourceUnavailable(f"{error.filename} does not exist") from error
        except OSError as error:
            reason = f"{error.filename or self._directory} cannot be listed: {error.strerror}"
            raise SourceUnavailable(reason) from error
        return {name: size for name, size in sizes.items() if size}

    def _is_wanted(self, name: str) -> bool:
        draft = name.startswith(".") or name.endswith(".part")
        return not draft and fnmatchcase(name, self._pattern) and name not in self._skip


def _size(entry: os.DirEntry[str]) -> int:
    """The size in bytes; 0 for an entry that is no file or no longer exists."""
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0
