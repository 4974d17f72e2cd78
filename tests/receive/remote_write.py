"""Requests of Prometheus remote write, as a sender writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ha_engine.v1.remote_write_pb2 import (
    LabelledSeries,
    ReferencingSeries,
    SeriesLabel,
    SeriesSample,
)

ENCODING = {"Content-Encoding": "snappy"}
VERSION_1 = ENCODING | {
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
VERSION_2 = ENCODING | {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}


@dataclass(frozen=True)
class Series:
    """A series with its ``labels`` and its samples, which are pairs of value and milliseconds."""

    labels: Sequence[tuple[str, str]]
    samples: Sequence[tuple[float, int]] = ()
    histograms: int = 0
    other: bytes = field(default=b"", kw_only=True)
    """Encoded fields that the engine does not know."""


def version_1(series: Iterable[Series], *, metadata: bool = False) -> bytes:
    """Encode the series as prometheus.WriteRequest."""
    encoded = [
        LabelledSeries(
            labels=[SeriesLabel(name=name, value=value) for name, value in one.labels],
            samples=_samples(one),
            histograms=[b"\x10\x01"] * one.histograms,
        ).SerializeToString()
        + one.other
        for one in series
    ]
    body = b"".join(of_bytes(1, one) for one in encoded)
    return body + (of_bytes(3, b"\x08\x01\x12\x02up") if metadata else b"")


def version_2(series: Iterable[Series]) -> bytes:
    """Encode the series as io.prometheus.write.v2.Request. The symbols come after the series."""
    symbols, encoded = {"": 0}, list[bytes]()
    for one in series:
        words = [word for label in one.labels for word in label]
        refs = [symbols.setdefault(word, len(symbols)) for word in words]
        message = ReferencingSeries(
            labels_refs=refs, samples=_samples(one), histograms=[b"\x10\x01"] * one.histograms
        )
        encoded.append(message.SerializeToString() + one.other)
    body = b"".join(of_bytes(5, one) for one in encoded)
    return body + b"".join(of_bytes(4, word.encode()) for word in symbols)


def _samples(series: Series) -> list[SeriesSample]:
    return [SeriesSample(value=value, timestamp=at) for value, at in series.samples]


def of_bytes(number: int, value: bytes) -> bytes:
    """Encode a field of bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def snappy(body: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(body, asbytes=True)
    return packed
