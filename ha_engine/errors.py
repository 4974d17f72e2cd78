"""Every error that a user or another module may get.

The message of an error says what happened and what to do, in one sentence or in two joined by a
semicolon. The code that calls a driver translates the driver's errors into these classes, with
``from``. Errors of programmers have no class here, since they crash the process.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors. A command that an error ends exits with the error's ``exit_code``."""

    exit_code = 1


def sentence_of(error: BaseException) -> str:
    """The sentence that a command prints for the error that ended it."""
    if isinstance(error, EngineError):
        return str(error)
    reason = f"{type(error).__name__}: {error}"
    return f"unexpected {reason}; run 'ha-engine --debug …' to see where"


class InvariantBroken(EngineError):
    """An invariant of docs/RULES.md does not hold, so the process ends."""

    exit_code = 70


# -- what the user wrote ---------------------------------------------------------------------------


class ConfigError(EngineError):
    """A configuration file or variable is wrong, or two settings contradict each other."""

    exit_code = 2


class ApplicationError(EngineError):
    """An application file is wrong, or Spark refuses one of its queries."""

    exit_code = 2


class NonDeterministicQuery(ApplicationError):
    """A query may compute different results on two nodes (RULES.md#i6)."""


class BadTestFile(EngineError):
    """A test file of an application is wrong, or does not fit the application."""

    exit_code = 2


class JavaMissing(EngineError):
    """Java is missing, or Spark cannot run on the installed version of Java."""

    exit_code = 2


class HadoopConfigMissing(EngineError):
    """No environment variable names a directory with the addresses of YARN."""

    exit_code = 2


class NotInExecutorPod(EngineError):
    """The variables that Spark gives to the pod of an executor on Kubernetes are missing."""

    exit_code = 2


class JarMissing(EngineError):
    """The jar with the engine's classes for Spark's executors was not built."""

    exit_code = 2


class ClusterCheckFailed(EngineError):
    """The Spark application of ``ha-engine cluster check`` could not do its work."""


class DemoNotInstalled(EngineError):
    """The package with the demo's flights is missing; the extra ``demo`` installs it."""

    exit_code = 2


class DemoInterrupted(EngineError):
    """A signal ended the demo, with its nodes and its database."""

    def __init__(self, number: int) -> None:
        super().__init__("the demo was interrupted; all of its processes have ended")
        self.exit_code = 128 + number


class DemoStuck(EngineError):
    """The demo made no progress for minutes: no status changed, and the nodes used little CPU."""


class AddressInUse(EngineError):
    """Another process uses a port or socket that this node must listen on."""


# -- the disk --------------------------------------------------------------------------------------


class DataDirectoryLocked(EngineError):
    """Another process uses this data directory (RULES.md#r2)."""


class DiskFailed(EngineError):
    """An operation on a node's file failed, such as an fsync of the journal.

    The operation is never retried.
    """

    exit_code = 74


class CheckpointsFailed(DiskFailed):
    """The storage of the checkpoints failed while the node brought the state of a query.

    The node's own data is unchanged, so the node may try again.
    """


class ObjectStorageFailed(DiskFailed):
    """The object storage with the checkpoints refused a request or gave no answer."""


class JournalReplaced(EngineError):
    """The node truncated its journal or replaced it with a snapshot, so the node process restarts
    (RULES.md#i8)."""


class ApplicationReplaced(EngineError):
    """Another application is deployed, so the node process restarts with it (RULES.md#r36)."""


class DeploymentRefused(EngineError):
    """A node of the group cannot run an application, so it is not deployed."""


class JournalDamaged(EngineError):
    """A record inside the journal is unreadable. The message names the file and the offset."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(
            f"{path} is damaged at byte {offset}: {reason}; the records after it cannot be "
            "trusted: restore this file, or run 'ha-engine reinit' if another node has its records"
        )


class OnlyCopy(EngineError):
    """A command refuses to delete a node's data, since they may be the only copy."""


class ForeignJournal(EngineError):
    """The journal on this disk belongs to another group."""


class UnknownJournalVersion(EngineError):
    """The journal on this disk has a format that this ha-engine does not read (RULES.md#r32)."""


class OutboxDamaged(EngineError):
    """A batch of the outbox is missing, unreadable or out of order."""


# -- the database ----------------------------------------------------------------------------------


class DatabaseUnreachable(EngineError):
    """The database cannot be reached, or the outcome of a call to the database is unknown."""


class DatabaseNotReady(EngineError):
    """The database answers, but refuses the role, or lacks the schema in the right version."""

    exit_code = 2


class OlderEngineInUse(EngineError):
    """The upgrade of the schema cannot be finalised, since a node may still run an older engine
    (RULES.md#r32)."""


class GroupUnknown(EngineError):
    """The database has no lease row of this group, since no node of the group was ever active."""


class LeaseNotChanged(EngineError):
    """A change of the lease row that an operator requested failed, and left the row unchanged."""


class AggregationNotReady(EngineError):
    """The tables of an aggregation cannot answer a question now, or not in time."""


class NotAValue(EngineError):
    """A request compares a key of an aggregation, or a column of the output, with a value that its
    type does not have."""


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
    """Spark's checkpoint lacks a file that a snapshot needs, perhaps only for a moment."""


class SnapshotFailed(EngineError):
    """The node could not take a snapshot. The node takes the next snapshot at the usual time."""


class SnapshotDamaged(EngineError):
    """A revision in the database cannot be restored (RULES.md#i10)."""


class SnapshotUnfit(SnapshotDamaged):
    """An undamaged revision does not fit this node, which has another application or runtime."""


class RevisionForgotten(EngineError):
    """A revision was deleted after it had been listed, since newer revisions replaced it."""

    def __init__(self, revision_id: int) -> None:
        super().__init__(
            f"revision {revision_id} was deleted meanwhile, since newer revisions replaced it"
        )


class DraftLost(EngineError):
    """The draft of a snapshot is gone: another node began a newer draft, or the database lost a
    part of the draft."""


# -- events ----------------------------------------------------------------------------------------


class Rejected(EngineError):
    """Base of the errors that a producer gets instead of an ack. The node stored no event of the
    rejected request."""


class NotAllowed(Rejected):
    """The caller has no token, or its token does not permit this request."""


class InvalidEvents(Rejected):
    """The payload does not fit the stream's schema.

    ``row`` is the index of the wrong row, from 0, or None if the index is not known.
    """

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
    """The node does not read the content type of the request."""


class SequenceConflict(Rejected):
    """A producer reused a sequence for another payload (RULES.md#r27)."""


class SequenceForgotten(SequenceConflict):
    """A producer sent a sequence older than those that the node remembers.

    The node cannot know whether it has already stored a request with this sequence.
    """


class Backpressure(Rejected):
    """The node has reached a limit. The producer may retry after ``retry_after_seconds``."""

    def __init__(self, reason: str, retry_after_seconds: float = 1.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(reason)


class TooManyProducers(Backpressure):
    """The node would have to forget a producer that sent lately, whose retries it would then store
    again."""


class NotActive(Rejected):
    """This node does not take events now. ``active`` is the URL of the active, if known.

    With ``stored_nothing``, no event of the request is stored. Otherwise some may be.
    """

    def __init__(
        self, reason: str, active: str | None = None, *, stored_nothing: bool = False
    ) -> None:
        self.active, self.stored_nothing = active, stored_nothing
        super().__init__(reason)


class OffsetMoved(EngineError):
    """The rows that a source gave do not continue at the source's offset in the journal.

    The node opens the source again at the offset in the journal.
    """


class SourceUnavailable(EngineError):
    """The node cannot read a source now, and retries."""


class SourceRefused(EngineError):
    """The node cannot read a source until an operator removes the cause."""


# -- output ----------------------------------------------------------------------------------------


class SinkUnavailable(EngineError):
    """The sink did not take a batch, and the publisher retries."""


class SinkRefused(EngineError):
    """The sink will never take a batch, because of its schema, its rights or a value.

    An operator must remove the cause.
    """


class Fenced(EngineError):
    """The sink's ledger carries a higher epoch: another node publishes (RULES.md#r24)."""

    def __init__(self, epoch: int, sink: str) -> None:
        self.epoch = epoch
        super().__init__(f"sink {sink} is owned by epoch {epoch}: another node became active")


# -- processes and tools ---------------------------------------------------------------------------


class NodeUnreachable(EngineError):
    """A command needs a running node, but no node answered."""


class StatementMissing(EngineError):
    """Another version of the engine does not say what it fits, so it cannot be compared."""

    exit_code = 2


class NotReady(EngineError):
    """The active refuses a switchover for now, since no other node is ready to take over."""


class QueryProcessFailed(EngineError):
    """The query process cannot run Spark, since Spark did not start or its JVM ended."""


class StateLost(QueryProcessFailed):
    """Neither the checkpoint nor the journal has the state of a query (RULES.md#r21)."""


class StateTooLarge(QueryProcessFailed):
    """A query has more state than its limit."""


class CheckpointTooOld(QueryProcessFailed):
    """The journal has trimmed the mark or the records of the next batch of a checkpoint."""


class RangeUnavailable(QueryProcessFailed):
    """No node sent a range of the journal to a worker of Spark for some time, perhaps only for a
    moment."""


class RangeRefused(QueryProcessFailed):
    """No node will send a range of the journal to a worker of Spark until an operator removes the
    cause."""


class HostKilled(QueryProcessFailed):
    """The operating system killed a process of Spark, often for lack of memory.

    The node blames no batch for this failure.
    """


class BatchFailed(EngineError):
    """The function for a query's batches failed. Only Spark gets this error."""


class MasterUnavailable(QueryProcessFailed):
    """No master of the cluster, YARN or Kubernetes accepted Spark's driver when Spark started."""


class DriverRemoved(QueryProcessFailed):
    """Spark's driver lost its place on the cluster, and works no more.

    The node blames no batch for this failure.
    """


class SupervisorGone(EngineError):
    """The supervisor ended, so no process can start or reap the query process of this node."""


class ProducerFailed(EngineError):
    """The idempotent producer of a receiver can write no more, so the receiver restarts."""


class DeliveryFailed(EngineError):
    """A producer gave up: no node took the events before the deadline."""
