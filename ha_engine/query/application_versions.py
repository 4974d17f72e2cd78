"""Compare the application file that this process loaded with what the node runs (RULES.md#r23).

The node process and the query process read the application file at different times. An edit between
the two reads must not change what a query computes under a version that the journal names.
"""

from __future__ import annotations

from pathlib import Path

from ha_engine.errors import ApplicationError, QueryProcessFailed
from ha_engine.query.application import PythonFunction, StreamApplication, load_application
from ha_engine.query.layout import directories_of

CHANGED = "the application file changed while the node ran; restart ha-engine run"


class ApplicationChanged(ApplicationError):
    """The application file no longer has the version of a query that the node runs."""


class PythonChanged(QueryProcessFailed):
    """The module of a Python function changed, and only a new process imports all of it again."""


class ApplicationVersions:
    """Loads the application file, and again when the node names another version of a query.

    ``path`` is the file's path until the node names another one, since it runs an application that
    was deployed (RULES.md#r36).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Spark's workers import modules from here as long as this process lives.
        self._modules = directories_of(path)
        self._loaded: StreamApplication | None = None

    def holding(self, query: str, digest: str, path: Path | None = None) -> StreamApplication:
        """Return the application in which ``query`` has the digest ``digest``, from the file
        ``path`` or the one before.

        Raises ApplicationChanged, PythonChanged.
        """
        before, moved = self._loaded, path not in (None, self._path)
        self._path = path or self._path
        if before is not None and not moved and _holds(before, query, digest):
            return before
        now = self._load()
        if not _holds(now, query, digest):
            raise ApplicationChanged(CHANGED)
        if self._python_moved(now) or (before is not None and _python_changed(before, now)):
            raise PythonChanged("a Python function changed; the query process restarts with it")
        self._loaded = now
        return now

    def _python_moved(self, now: StreamApplication) -> bool:
        return now.directories != self._modules and now.has_functions

    def _load(self) -> StreamApplication:
        """Load the application file.

        The node could read the application file, so an unreadable file must have changed since.

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
