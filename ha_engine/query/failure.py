"""Describe the reason of a query's failure in one line that a user can act on.

Spark wraps an error several times, and the innermost error with a message is the most specific. The
node process decides what follows from a failure.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ha_engine.errors import DiskFailed, EngineError

REASON_CHARACTERS_MAX = 600
DETAIL_CHARACTERS_MAX = 16_000
CAUSES_MAX = 20
JVM_OUT_OF_MEMORY = 3
"""Java's exit code under ``-XX:+ExitOnOutOfMemoryError``."""
_STATE = re.compile(r"\s*SQLSTATE: \w+;?\s*")
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?::.*)?$")
_TRACEBACK = "Traceback (most recent call last):"
_PLAN = re.compile(r"\n== |;\s*\n")
_DISK = re.compile(
    r"(?:IOException|FileSystemException|FSError): .*(?:{})".format(
        "|".join(os.strerror(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
    )
)
_JOURNAL = re.compile(
    r"ha_engine\.errors\.(?:DiskFailed|JournalDamaged|UnknownJournalVersion): (.*)"
)
_OF_A_TASK = (
    r"SparkException: Job aborted due to stage failure: Task \d+ in stage \S+ failed \d+ times, "
    r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): "
)
_OF_THE_HOST = re.compile(
    # Spark gives a Python worker only ten seconds to connect, even on a busy host.
    "SparkException: Python worker failed to connect back"
    # Timeouts of sockets between the JVM and Python, and of messages between parts of Spark.
    "|SocketTimeoutException: |RpcTimeoutException: "
    # A host lacks the memory or the free process to start a program, or a worker has no engine.
    "|IOException: Cannot run program "
    # A cluster lost the executors that ran a task, or the blocks that they had written. An executor
    # that ran out of memory is not lost, but was ended by its task, as the JVM without a cluster.
    # On Kubernetes the code is in the second line.
    rf"|{_OF_A_TASK}ExecutorLostFailure (?!.*\s*.*\bcode {JVM_OUT_OF_MEMORY}\b)"
    r"|SparkException: Job aborted due to stage failure: "
    r"\w+ \d+ \(.*\) has failed the maximum allowable number of times: "
)
_OF_KAFKA = re.compile(
    rf"(?:{_OF_A_TASK}(?:org\.apache\.kafka|java\.util\.concurrent)[\w.]*\.)?(?:"
    # The brokers do not answer the driver or a task, or do not give a task the next record.
    "TimeoutException: (?:Timeout of |Timeout expired |Timed out waiting |Cannot fetch record )"
    # The brokers refuse the user, who then can read no batch.
    "|(?:Ssl|Sasl)AuthenticationException: |(?:Topic|Group)AuthorizationException: )"
)
_OF_AMAZON = r"[^\n]*\bsoftware\.amazon\.awssdk\.[\w.]+Exception: "
_OF_OBJECT_STORAGE = re.compile(
    # The storage of the checkpoints gives no answer, or refuses every request, so that no batch can
    # run. Hadoop's message has the exception of Amazon's library.
    rf"(?:AWS\w+|SdkClient|S3)Exception: |\w+Exception: {_OF_AMAZON}"
    rf"|{_OF_A_TASK}(?:.*\nCaused by: )?{_OF_AMAZON}",
    re.DOTALL,
)
_LOST_RECORDS = re.compile(
    rf"(?:{_OF_A_TASK}org\.apache\.spark\.sql\.kafka010\.)?"
    r"KafkaIllegalStateException: Some data may have been lost .*?\nReason: (.*?)\.?"
    r"(?:\n(?:with consumer group|\tat|\nDriver) .*)?",
    re.DOTALL,
)
_OF_THE_JOURNAL = re.compile(r"ha_engine\.errors\.(?:RangeUnavailable|RangeRefused): ")

_DAMAGED_CHECKPOINT = re.compile(
    # Hadoop and Spark keep checksums of Spark's files.
    r"ChecksumException: |\[CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
)
_TOO_OLD_CHECKPOINT = re.compile(r"ha_engine\.errors\.CheckpointTooOld: ")
_TOO_OLD_FOR_KAFKA = re.compile(rf"IllegalStateException: {_TOO_OLD_CHECKPOINT.pattern}")
_SOCKET_TIMEOUT = re.compile(r"(?:pyspark\.[\w.]+: )?\[CANNOT_OPEN_SOCKET\].*timed out", re.DOTALL)
_WORKER_DEATH = re.compile(r"SparkException: Python worker exited unexpectedly(?!.*Fatal Python)")
_JVM_FRAME = re.compile(r"\n\s*at [\w$.]+\(")


def one_line(error: BaseException) -> str:
    """The error's class and message; after a failure in a Python function, the Python exception."""
    if isinstance(error, EngineError):
        return _short(f"{type(error).__name__}: {error}")
    if lost := _lost_records(error):
        return lost
    text = _message(error)
    if _TRACEBACK in text:
        return _short(_python_error(text))
    return _short(_first_sentence(text))


def detail(error: BaseException) -> str:
    """Spark's whole message, cut to DETAIL_CHARACTERS_MAX."""
    return str(error)[:DETAIL_CHARACTERS_MAX]


def disk_failure(error: BaseException) -> DiskFailed | None:
    """Return DiskFailed if Spark could not write its files or read the journal; else None."""
    for text in islice(_jvm_messages(error), CAUSES_MAX):
        if _DISK.match(text):
            return DiskFailed(
                f"Spark cannot write its checkpoint or scratch files ({_short(text)}); "
                "free or replace the disk, then restart the node"
            )
        if _TRACEBACK in text and (found := _JOURNAL.match(_python_error(text))):
            return DiskFailed(f"Spark cannot read the journal: {_short(found[1])}")
    return None


def is_of_the_host(error: BaseException) -> bool:
    """Whether the host, Kafka or the storage of the checkpoints caused the failure.

    No batch is to blame for it (RULES.md#i15).
    """
    return any(
        _SOCKET_TIMEOUT.match(_python_error(text) if _TRACEBACK in text else text)
        or (_TRACEBACK in text and _OF_THE_JOURNAL.match(_python_error(text)))
        or _OF_THE_HOST.match(text)
        or _OF_KAFKA.match(text)
        or _OF_OBJECT_STORAGE.match(text)
        for text in islice(_jvm_messages(error), CAUSES_MAX)
    )


def is_useless_checkpoint(error: BaseException) -> bool:
    """Whether no batch can continue the checkpoint, because a file has other bytes than Spark
    wrote, or because the checkpoint is too old."""
    return any(
        _DAMAGED_CHECKPOINT.match(text)
        or _TOO_OLD_FOR_KAFKA.match(text)
        or (_TRACEBACK in text and _TOO_OLD_CHECKPOINT.match(_python_error(text)))
        for text in islice(_jvm_messages(error), CAUSES_MAX)
    )


def is_worker_death(error: BaseException) -> bool:
    """Whether a Python worker ended without an exception and without a crash of Python itself."""
    return any(_WORKER_DEATH.match(text) for text in islice(_jvm_messages(error), CAUSES_MAX))


def _lost_records(error: BaseException) -> str | None:
    """Advice about records that Kafka no longer has, or None if none are missing.

    Spark's own message advises to read on without them, so that nodes would read other rows.
    """
    for text in islice(_jvm_messages(error), CAUSES_MAX):
        if lost := _LOST_RECORDS.fullmatch(text):
            return _short(
                f"Kafka no longer has records of this batch: {lost[1]}. If the other node has "
                "finished the batch, run 'ha-engine reinit' for this node, which takes its state "
                "from a snapshot. Otherwise 'ha-engine query skip' leaves the batch out. Then "
                "raise the topic's retention."
            )
    return None


def _message(error: BaseException) -> str:
    """The innermost message for users in the JVM's chain of causes."""
    messages = list(islice(_jvm_messages(error), CAUSES_MAX))
    explained = [text for text in messages if text.startswith("[") or _TRACEBACK in text]
    return str((explained or messages or [f"{type(error).__name__}: {error}"])[-1])


def _jvm_messages(error: BaseException) -> Iterator[str]:
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if cause is None and str(error):
        yield _named(type(error).__name__, str(error))
    while cause is not None:
        text = cause.getMessage()
        if text:
            yield _named(cause.getClass().getSimpleName(), str(text))
        cause = cause.getCause()


def _named(name: str, text: str) -> str:
    """Put the error class ``name`` before ``text``, unless ``text`` names an error itself.

    Spark's own messages begin with their error class, and a traceback ends with its error.
    """
    return text if text.startswith("[") or _TRACEBACK in text else f"{name}: {text}"


def _python_error(text: str) -> str:
    """The last line that names an exception in the last traceback of ``text``."""
    lines = text[text.rindex(_TRACEBACK) :].splitlines()
    named = [line.strip() for line in lines if _PYTHON_ERROR.match(line)]
    return named[-1] if named else lines[-1]


def _first_sentence(text: str) -> str:
    """Remove query plan, SQL listing and JVM frames from ``text``, but not the place in the SQL."""
    text = _JVM_FRAME.split(text, maxsplit=1)[0]
    text = _PLAN.split(text, maxsplit=1)[0]
    head, state, tail = text.partition(" SQLSTATE:")
    place = re.search(r"\(?line \d+,? pos \d+\)?", tail) if state else None
    return f"{_STATE.sub(' ', head).strip()} {place[0] if place else ''}".strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:REASON_CHARACTERS_MAX]
