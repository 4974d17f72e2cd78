"""The application file as this process loaded it, compared with what the node runs (RULES.md#r23).

The node and this process each read the file, at different times. An edit in between must not change
what a query computes under a version that the journal names.
"""

from __future__ import annotations

from pathlib import Path

from ha_engine.errors import ApplicationError, QueryProcessFailed
from ha_engine.query.application import PythonFunction, StreamApplication, load_application

CHANGED = "the application file changed while the node ran; restart ha-engine run"


class ApplicationChanged(ApplicationError):
    """The file no longer holds the version of a query that the node runs."""


class PythonChanged(QueryProcessFailed):
    """A module of a Python function changed: only a new process imports all of it again."""


class ApplicationVersions:
    """Loads the file when the node first names a query, and again when it names another version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded: StreamApplication | None = None

    def holding(self, query: str, digest: str) -> StreamApplication:
        """The application with this version of ``query``.

        Raises ApplicationChanged, PythonChanged.
        """
        before = self._loaded
        if before is not None and _holds(before, query, digest):
            return before
        now = self._load()
        if not _holds(now, query, digest):
            raise ApplicationChanged(CHANGED)
        if before is not None and _python_changed(before, now):
            raise PythonChanged("a Python function changed; the query process restarts with it")
        self._loaded = now
        return now

    def _load(self) -> StreamApplication:
        """The node has read the file, so a file that cannot be read has changed since.

        Raises ApplicationChanged.
        """
        try:
            return load_application(self._path)
        except (ApplicationError, OSError) as error:
            raise ApplicationChanged(CHANGED) from error


def _holds(application: StreamApplication, query: str, digest: str) -> bool:
    spec = application.queries.get(query)
    return spec is not None and spec.digest == digest


def _python_changed(before: StreamApplication, now: StreamApplication) -> bool:
    return any(
        isinstance(spec.text, PythonFunction) and not _holds(before, name, spec.digest)
        for name, spec in now.queries.items()
    )
