"""Read a range of the journal from the nodes, in Spark's Python workers on other hosts.

A read starts at the node of the query process. When that node is away or lacks the records, the
read continues at the other node. A node whose journal has another last record, since an operator
forced a failover, refuses the read.

This module imports gRPC and small modules of the engine, and no Arrow or PySpark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import grpc
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from ha_engine import __version__
from ha_engine.errors import CheckpointTooOld, QueryProcessFailed, RangeRefused, RangeUnavailable
from ha_engine.journal.record import BadFrame, decode_all
from ha_engine.query.link import CHANNEL_OPTIONS, code_of, details_of
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.types import Events, Record
from ha_engine.v1 import ranges_pb2 as pb
from ha_engine.v1.ranges_pb2_grpc import RangesStub

PATIENCE_SECONDS = 60.0
"""A read fails after this time without a message from any node. The time in which the caller works
with a record does not count."""
CALL_SECONDS = 10.0
"""Timeout of a call, after which the read continues with another call. After a call without a
message, the next call has twice the time."""
_CONNECT_SECONDS, _PING_SECONDS = 5, 4
"""Less than CALL_SECONDS, so that a lost host is known before the first call ends."""
_LOOKAHEAD_BYTES = 1 << 20
"""gRPC requests this much of a call before the caller needs it. With gRPC's default of 64 KiB, a
range over a network with a round trip of 1 ms took up to 1.7 times as long."""
_CHANNEL_OPTIONS = (
    *CHANNEL_OPTIONS,
    # gRPC uses this setting as the timeout of a connection attempt too.
    ("grpc.min_reconnect_backoff_ms", _CONNECT_SECONDS * 1000),
    # One frame of the journal may be larger than any fixed limit.
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
    ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", _PING_SECONDS * 1000),
    ("grpc.http2.max_pings_without_data", 0),
)
_CHANNELS_MAX = 16
_REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers of a node that does not work with this worker."""
_TRIMMED = grpc.StatusCode.OUT_OF_RANGE
_LASTING = (*_REFUSED, _TRIMMED, grpc.StatusCode.DATA_LOSS)
"""Answers that a later call to the same node would get too."""


def read_range(
    endpoints: Endpoints,
    stream: str,
    first: int,
    last: int,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[Record]:
    """The records with events of ``stream`` and first <= sequence <= last, in order, each once.

    The read keeps one message and _LOOKAHEAD_BYTES in memory, and takes the next message when the
    caller needs it.

    Raises RangeUnavailable after ``patience_seconds`` without a message, CheckpointTooOld if the
    records are trimmed, RangeRefused if no later read could succeed.
    """
    reading = _Reading(endpoints, stream, first, last, patience_seconds)
    try:
        while reading.next <= last:
            yield from reading.message()
    finally:
        reading.end_call()


class _Failed(Exception):
    """An attempt to read a message failed. ``is_final`` is True if no attempt can succeed."""

    def __init__(self, is_final: bool) -> None:
        self.is_final = is_final
        super().__init__()


class _Malformed(Exception):
    """A message is not what the protocol permits."""


class _Reading:
    """The progress of one read. ``next`` is the sequence after the last received record."""

    def __init__(
        self, endpoints: Endpoints, stream: str, first: int, last: int, patience_seconds: float
    ) -> None:
        self._endpoints, self._stream, self._last = endpoints, stream, last
        self._patience_seconds = patience_seconds
        self.next = first
        self._place = 0
        self._call: Any = None
        self._call_seconds, self._call_has_progress = CALL_SECONDS, False
        self._reasons: dict[str, str] = {}
        self._lasting: dict[str, grpc.StatusCode] = {}

    def message(self) -> list[Record]:
        """The records of the next message. Raises the errors of read_range."""
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.02, max=0.5),
            stop=stop_after_delay(self._patience_seconds),
            reraise=True,
        )
        try:
            return retrying(self._attempt)
        except _Failed as error:
            raise self._error() from error.__cause__

    def end_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _attempt(self) -> list[Record]:
        try:
            return self._read()
        except grpc.RpcError as error:
            raise self._failed(code_of(error), _reason(error)) from error
        except (BadFrame, _Malformed) as error:
            reason = f"its answer is damaged ({error})"
            raise self._failed(grpc.StatusCode.INTERNAL, reason) from error

    def _read(self) -> list[Record]:
        if self._call is None:
            self._call = self._open_call()
        message = next(self._call, None)
        if message is None:
            raise _Malformed(f"it ends before record {self._last}")
        records = list(decode_all(message.frames))
        self._check(records, message.through)
        self.next = message.through + 1
        self._call_has_progress = True
        return records

    def _open_call(self) -> Any:
        request = pb.ReadRequest(
            release=__version__,
            group_id=self._endpoints.group_id,
            stream=self._stream,
            first_sequence=self.next,
            last_sequence=self._last,
            last_epoch=self._endpoints.last_epoch,
        )
        self._call_has_progress = False
        channel = _channel(os.getpid(), self._address, self._endpoints.ca)
        return RangesStub(channel).Read(
            request,
            timeout=min(self._call_seconds, self._patience_seconds),
            metadata=(("authorization", f"Bearer {self._endpoints.token}"),),
        )

    @property
    def _address(self) -> str:
        return self._endpoints.addresses[self._place]

    def _check(self, records: list[Record], through: int) -> None:
        """Raise _Malformed unless the message continues the read."""
        before = self.next - 1
        for record in records:
            if not (isinstance(record.body, Events) and record.body.stream == self._stream):
                raise _Malformed(f"record {record.position} is not of stream {self._stream}")
            if record.position.sequence <= before:
                raise _Malformed(f"record {record.position} comes after record {before}")
            before = record.position.sequence
        if not max(before, self.next) <= through <= self._last:
            raise _Malformed(f"it claims to end at record {through}")

    def _failed(self, code: grpc.StatusCode, reason: str) -> _Failed:
        """Note why the present node failed, and choose the node for the next attempt."""
        self.end_call()
        self._reasons[self._address] = reason
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and not self._call_has_progress:
            self._call_seconds *= 2
        if code in _LASTING:
            self._lasting[self._address] = code
        if self._is_hopeless():
            return _Failed(is_final=True)
        count = len(self._endpoints.addresses)
        later = [(self._place + step) % count for step in range(1, count + 1)]
        self._place = next(
            place for place in later if self._endpoints.addresses[place] not in self._lasting
        )
        return _Failed(is_final=False)

    @property
    def _own_answer(self) -> grpc.StatusCode | None:
        return self._lasting.get(self._endpoints.addresses[0])

    def _is_hopeless(self) -> bool:
        # A worker that does not fit the query's own node could make other rows than that node, so
        # the read does not try the other node.
        return self._own_answer in _REFUSED or self._lasting.keys() >= {*self._endpoints.addresses}

    def _error(self) -> QueryProcessFailed:
        what = f"records {self.next} to {self._last} of stream {self._stream}"
        reasons = "; ".join(f"{address}: {reason}" for address, reason in self._reasons.items())
        if self._own_answer is _TRIMMED:
            return CheckpointTooOld(
                f"the journal has trimmed the {what} that a batch needs ({reasons})"
            )
        if self._is_hopeless():
            return RangeRefused(f"the nodes do not send the {what} to this worker: {reasons}")
        return RangeUnavailable(
            f"no node sent the {what} for {self._patience_seconds:g} s; check that the nodes run, "
            f"and that this host reaches execution.listen of each node: {reasons}"
        )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _Failed) and not error.is_final


def _reason(error: grpc.RpcError) -> str:
    text = details_of(error).rpartition("last error: ")[2]
    return f"{code_of(error).name}, {text}"


@lru_cache(maxsize=_CHANNELS_MAX)
def _channel(pid: int, address: str, ca: bytes | None) -> grpc.Channel:
    """The channel of this process to ``address``, which all later reads of the process use too.

    Spark's daemon forks its Python workers, and a channel does not work in a child. ``pid`` gives
    each child a channel of its own. A new channel costs a connection and a TLS handshake, but a
    worker reads several ranges of each batch.
    """
    if ca is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(root_certificates=ca)
    return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
