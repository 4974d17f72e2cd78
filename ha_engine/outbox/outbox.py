"""Keep the admitted batches of each query, which are contiguous and never replaced (RULES.md#r19).

The query process writes ``<directory>/<query>/pending/<n>.<incarnation>.arrow``.
Admission renames that file to ``<directory>/<query>/<n>.arrow`` and fsyncs the directory.
``<directory>/<query>/<n>.digest`` has the digest of an admitted batch.

``batch_file`` writes and reads the rows. The sinks' ledgers decide which batches are published, and
the node trims a batch once every sink has it (RULES.md#r25). Methods that change the outbox block
on small file operations, so call them in a thread. Methods that only read the outbox use its state
in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox.batch_file import DIGEST_OF_TASKS, digest_of_file
from ha_engine.outbox.query_outbox import DROPPED, OutboxBatch, QueryOutbox, batch_at
from ha_engine.system.disk import disk
from ha_engine.system.files import OS_FILES, Files, make_directory
from ha_engine.types import SHADOW_SIGN

__all__ = ["Admission", "Outbox", "OutboxBatch"]


class Admission(Enum):
    """The answer when the query process asks the node to admit a batch."""

    ADMITTED = "admitted"
    DONE = "done"
    NEED_DIGEST = "need digest"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class _Attempt:
    number: int
    file: Path
    rows: int
    bytes: int
    digest: str | None


class Outbox:
    """The batches of all queries, below one directory; thread-safe."""

    def __init__(self, directory: Path, files: Files = OS_FILES) -> None:
        self._directory, self._files = directory, files
        self._by_query: dict[str, QueryOutbox] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: Path, *, living: str | None = None, files: Files = OS_FILES) -> Outbox:
        """Read the admitted batches. Delete the outbox of a shadow that is damaged.

        Delete pending files, except those that incarnation ``living`` wrote.

        Raises OutboxDamaged and DiskFailed.
        """
        outbox = cls(directory.resolve(), files)
        with disk(directory):
            make_directory(outbox._directory, files=files)
            if interrupted := sorted(outbox._directory.glob(f"{DROPPED}*")):
                # Else a loss of power could bring back the old name of what is deleted in part.
                files.fsync_directory(outbox._directory)
            for dropped in interrupted:
                files.rmtree(dropped)
        for place in sorted(outbox._directory.iterdir()):
            if place.is_dir():
                try:
                    outbox._by_query[place.name] = QueryOutbox.open(place, living, files)
                except OutboxDamaged:
                    if SHADOW_SIGN not in place.name:
                        raise
                    QueryOutbox(place, files).remove()
        return outbox

    # -- the query process writes --------------------------------------------------------------

    def admit(
        self, query: str, number: int, file: str, rows: int, bytes: int, digest: str | None = None
    ) -> Admission:
        """Admit a batch from its pending file.

        ``file`` is a path below the outbox directory, and ``bytes`` is the file's size.

        Raises OutboxDamaged if the batch does not follow the last admitted batch, or if its file is
        missing. Raises DiskFailed.
        """
        attempt = _Attempt(number, self._pending(query, file), rows, bytes, digest or None)
        with self._lock:
            query_outbox = self._of_query(query)
            if number <= query_outbox.last:
                return self._admit_again(query_outbox, attempt)
            if number > query_outbox.last + 1:
                raise OutboxDamaged(
                    f"batch {number} of query {query} does not follow batch {query_outbox.last}; "
                    "the query must start again from its checkpoint"
                )
            query_outbox.add(OutboxBatch(attempt.file, rows, bytes), attempt.digest)
            return Admission.ADMITTED

    def restore(self, query: str, left: int, files: Sequence[Path]) -> list[OutboxBatch]:
        """Continue after a snapshot, which has the query's batches after ``left`` in ``files``.

        The outbox has no batch up to ``left`` afterwards. Returns the batches that the outbox
        lacked, in order. Their content must be durable. A crash leaves a part of the batches
        without a gap. Raises OutboxDamaged, DiskFailed.
        """
        # Read without the lock, since other queries wait for it to admit their batches.
        batches = [batch_at(file, self._files) for file in files]
        with self._lock:
            return self._of_query(query).restore(left, batches)

    # -- shadows (RULES.md#r38) ----------------------------------------------------------------

    def begin_shadow(self, shadow: str) -> None:
        """Mark the outbox of a shadow, so that its query can continue with it."""
        with self._lock:
            self._of_query(shadow).begin_shadow()

    def shadows(self) -> list[str]:
        """The names of the shadows that have an outbox, or had one."""
        return [name for name in self._by_query if SHADOW_SIGN in name]

    def continue_with(self, query: str, shadow: str, after: int) -> None:
        """Replace the batches of ``query`` above ``after`` by those of ``shadow``, and delete the
        outbox of the shadow. Do nothing if it has none, for example because that is done.

        Raises DiskFailed.
        """
        with self._lock:
            made = self._of_query(shadow)
            if made.is_shadow:
                self._of_query(query).continue_with(made, after)
            made.remove()
            del self._by_query[shadow]

    def report_digest(self, query: str, number: int, digest: str) -> None:
        """Store the digest of an admitted batch, unless one is stored already."""
        with self._lock:
            self._of_query(query).keep_digest(number, digest)

    # -- the node asks -------------------------------------------------------------------------

    def last_admitted(self, query: str) -> int:
        """The highest batch that is admitted, even if it is trimmed already; 0 for none."""
        return self._of_query(query).last

    def floor(self, query: str) -> int:
        """The highest number of a batch that the outbox need not contain."""
        return self._of_query(query).floor

    def first(self, query: str) -> int | None:
        """The oldest batch of a query in the outbox, or None if the outbox is empty."""
        return min(self._of_query(query).batches, default=None)

    def trimmed_through(self, query: str) -> int:
        """The highest trimmed batch that this disk has recorded; 0 for none."""
        return self._of_query(query).trimmed_through

    def batch(self, query: str, number: int) -> OutboxBatch | None:
        """An admitted batch, or None if the batch is not admitted yet or is trimmed."""
        return self._of_query(query).batches.get(number)

    def digest(self, query: str, number: int) -> str | None:
        """The reported digest of a batch, which remains for a while after the batch is trimmed."""
        return self._of_query(query).digests.get(number)

    def digests(self, query: str) -> list[tuple[int, str]]:
        """All known digests of a query with the numbers of their batches, in order."""
        return sorted(self._of_query(query).digests.items())

    def backlog(self, query: str) -> tuple[int, int]:
        """The number of a query's batches in the outbox, and their bytes."""
        query_outbox = self._of_query(query)
        return len(query_outbox.batches), query_outbox.bytes

    # -- the node trims ------------------------------------------------------------------------

    def set_outbox_floor(self, query: str, floor: int) -> None:
        """Set the floor at the start of the node. The outbox must have all batches after the floor.

        Raises OutboxDamaged if a batch after the floor is missing.
        """
        with self._lock:
            self._of_query(query).begin_after(floor)

    def trim(self, query: str, through: int) -> None:
        """Remove the batches up to and including ``through``."""
        with self._lock:
            self._of_query(query).trim(through)

    def drop(self, query: str) -> None:
        """Delete all data of a query, even its batch numbers, because its state begins empty."""
        with self._lock:
            self._of_query(query).remove()
            self._by_query.pop(query, None)

    def drop_all(self) -> None:
        """Delete the batches of all queries, because the records for them were given up."""
        for query in list(self._by_query):
            self.drop(query)

    # ------------------------------------------------------------------------------------------

    def _of_query(self, query: str) -> QueryOutbox:
        if query not in self._by_query:
            self._by_query[query] = QueryOutbox(self._place(query), self._files)
        return self._by_query[query]

    def _place(self, query: str) -> Path:
        place = self._directory / query
        if place.parent != self._directory or query in {"", ".", ".."}:
            raise OutboxDamaged(f"{query!r} is not a query name; rename it in the application")
        return place

    def _pending(self, query: str, file: str) -> Path:
        path = (self._directory / file).resolve()
        if path.parent != self._place(query) / "pending":
            raise OutboxDamaged(f"{file!r} is not among the pending files of query {query}")
        return path

    def _admit_again(self, query_outbox: QueryOutbox, attempt: _Attempt) -> Admission:
        """Decide on a second attempt to admit a batch.

        The batch that was admitted first remains in any case.
        """
        admitted = query_outbox.batches.get(attempt.number)
        known = query_outbox.digests.get(attempt.number)
        if known is None and admitted is None:
            admission = Admission.DONE  # trimmed so long ago that its digest is gone too
        elif attempt.digest is None:
            return Admission.NEED_DIGEST
        else:
            if known is None and admitted is not None:
                known = digest_of_file(admitted.path, self._files)
                query_outbox.keep_digest(attempt.number, known)
            # The rows that tasks wrote are not in the outbox, so nothing is known of them.
            same = known == attempt.digest or DIGEST_OF_TASKS in (known, attempt.digest)
            admission = Admission.DONE if same else Admission.MISMATCH
        with disk(self._directory):
            self._files.unlink(attempt.file, missing_ok=True)
        return admission
