"""The destination of the buckets of a query's sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a ``postgres`` sink, and its database.

    ``url`` is that of the database, with the password. ``connect_timeout`` is in seconds. If
    batches are ``atomic``, readers see all rows of a batch at once.
    """

    url: str = field(repr=False)
    connect_timeout: float
    name: str
    mode: Literal["insert", "upsert"]
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Plugin:
    """A sink of a plug-in of type ``kind``.

    ``options`` and ``messages`` are JSON objects as in the application file, with the secrets that
    they refer to. ``messages`` is empty if the sink writes rows. A relative path in ``messages``
    begins at ``directory``.
    """

    kind: str
    options: str = field(repr=False)
    messages: str = field(default="", repr=False)
    directory: str = ""


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A sink whose rows the tasks of the active of ``epoch`` write.

    A hash of the columns ``key``, or of all columns, says in which bucket a row is. ``timeout`` is
    the limit of a call, in seconds.
    """

    group: str
    group_id: str
    query: str
    sink: str
    epoch: int
    key: tuple[str, ...]
    buckets: int
    timeout: float
    target: Table | Plugin
