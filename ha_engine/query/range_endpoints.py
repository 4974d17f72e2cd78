"""The nodes from which Spark's workers on other hosts read the journal.

Spark sends this value to the workers.

This module imports no gRPC, since the driver and workers on the node's host do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The nodes that serve ranges of the journal of the group ``group_id``.

    ``addresses`` has host:port of each node; the first is the node of this query process. The nodes
    require ``token``. ``ca`` has the certificates (PEM) of the authority that signed those of the
    nodes, or is None for plain text. ``last_epoch`` is the epoch of the last record of the range. A
    journal that has this record has the same range as the query's node (RULES.md#i8).
    """

    addresses: tuple[str, ...]
    token: str = field(repr=False)
    ca: bytes | None = field(repr=False)
    group_id: str
    last_epoch: int
