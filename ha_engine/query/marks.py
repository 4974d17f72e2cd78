"""Ask the node process where a source's next batch ends, and where the records of the batch are."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.errors import CheckpointTooOld
from ha_engine.query.link import Address, NodeLink
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.query.source_reader import SourceOptions
from ha_engine.types import Extent, Mark
from ha_engine.v1 import local_pb2 as pb


@dataclass(frozen=True, slots=True)
class Located:
    """The bytes of a range of records on this host, and the nodes that send them to other hosts.

    ``endpoints`` is None if all tasks run on this host.
    """

    extents: tuple[Extent, ...]
    endpoints: Endpoints | None


class Marks:
    """The marks of the query in ``options``. Each method raises what ``NodeLink.call`` raises."""

    def __init__(self, options: SourceOptions) -> None:
        self._query, self._incarnation = options.query, options.incarnation
        self._lineage = options.lineage
        self._link = NodeLink(Address(options.socket, options.incarnation))

    def after(self, number: int) -> Mark:
        """The mark that follows mark ``number``.

        The call blocks until that mark is committed. Raises CheckpointTooOld if the journal has
        trimmed that mark.
        """
        request = pb.AwaitMarkRequest(
            incarnation=self._incarnation,
            query=self._query,
            after=number,
            lineage=self._lineage,
        )
        while (reply := self._link.call(self._link.stub.AwaitMark, request)).pending:
            pass
        if reply.trimmed:
            raise too_old(number)
        return Mark(self._query, reply.number, reply.sequence)

    def located(self, number: int, first: int, last: int) -> Located:
        """The places of the records from ``first`` to ``last``; a skipped batch has none.

        Raises CheckpointTooOld if the journal has trimmed these records.
        """
        request = pb.LocateRequest(
            incarnation=self._incarnation,
            query=self._query,
            number=number,
            first_sequence=first,
            last_sequence=last,
        )
        reply = self._link.call(self._link.stub.Locate, request)
        if reply.trimmed:
            raise CheckpointTooOld(
                f"the journal has trimmed the records of batch {number}, from {first} to {last}"
            )
        found = () if reply.skipped else reply.extents
        extents = tuple(Extent(one.path, one.offset, one.length) for one in found)
        return Located(extents, _endpoints_of(reply))


def too_old(number: int) -> CheckpointTooOld:
    """The error of a checkpoint that ends at mark ``number``."""
    return CheckpointTooOld(
        f"the checkpoint ends at batch {number}, and the journal has trimmed the next mark"
    )


def _endpoints_of(reply: pb.LocateReply) -> Endpoints | None:
    if not reply.HasField("endpoints"):
        return None
    found = reply.endpoints
    addresses, ca = tuple(found.addresses), found.ca or None
    return Endpoints(addresses, found.token, ca, found.group_id, found.last_epoch)
