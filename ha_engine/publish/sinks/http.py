"""The ``http`` sink sends rows as NDJSON to a URL, in several requests that each have a key.

The header ``Idempotency-Key`` is group/query/sink/batch/first row/digest. A repeated request has
the same key, whether from this node or the next active. A receiver that remembers keys takes each
row once. Requests with other rows have another key, so a receiver never mistakes them for a
repetition. The sink puts rows aside that the receiver refuses repeatedly, because no retry corrects
a bad request.
"""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from typing import Annotated, ClassVar

import httpx
import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ha_engine.config.quantities import Duration
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.formats.json_lines import MEDIA_TYPE, json_lines
from ha_engine.formats.values import require_form
from ha_engine.plugins import OutputBatch, SinkPlace

_PASSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
"""4xx answers that do not mean that the rows are bad."""
_OPERATOR = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
)
"""Answers that every request would get, whatever its rows."""
_BODY_SHOWN = 200
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


def _url(written: str) -> str:
    """Check a URL. An error does not quote the URL, which may contain a password."""
    try:
        parsed = httpx.URL(written)
    except httpx.InvalidURL:
        raise ValueError(
            "is not a URL; write the special characters of a password as %XX"
        ) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("is not a URL of http or https")
    return written


def _headers(written: dict[str, str]) -> dict[str, str]:
    """Refuse headers that HTTP does not allow.

    A request with a forbidden header would fail with an error that shows the header's value, which
    may be secret.
    """
    for name, value in written.items():
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise ValueError(f"{name!r} is not a header, or its value is not printable ASCII")
    return written


class HttpOptions(BaseModel):
    """The sink's options. Rows whose request is refused ``attempts`` times are put aside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(_url)]
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = {}
    timeout: Duration = 5.0
    rows_per_request: Annotated[int, Field(ge=1, le=100_000)] = 500
    attempts: Annotated[int, Field(ge=1)] = 5


class HttpSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[BaseModel]] = HttpOptions
    guarantee: ClassVar[str] = (
        "at least once: a repeated request has the Idempotency-Key of the first one"
    )

    def __init__(self, options: HttpOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        # The URL for messages has no password and no query parameters, which may contain a token.
        self._where = str(httpx.URL(options.url).copy_with(userinfo=b"", query=None))
        self._client: httpx.Client | None = None
        # The last batch and the number of its delivered rows, after which a retry continues.
        self._done = (0, 0)
        # The last refused request as (batch, first row), and how many times it was refused.
        self._refused = ((0, 0), 0)

    def prepare(self, schema: pa.Schema) -> None:
        require_form(schema)

    def deliver(self, batch: OutputBatch) -> None:
        rows = batch.read()
        number, done = self._done
        for first in range(done if number == batch.number else 0, len(rows), self._size):
            self._send(batch, first, rows.slice(first, self._size))
            self._done = (batch.number, first + self._size)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _size(self) -> int:
        return self._options.rows_per_request

    def _send(self, batch: OutputBatch, first: int, rows: pa.Table) -> None:
        body, remaining = json_lines(rows), batch.remaining_seconds()
        if remaining <= 0:
            raise SinkUnavailable(f"the deadline passed before {self._where} had all rows")
        key = f"{batch.key}/{first}/{hashlib.blake2b(body, digest_size=8).hexdigest()}"
        answer = self._post(key, body, remaining)
        if answer.is_success:
            return
        reason = f"{self._where} answers {answer.status_code}: {_shown(answer)}"
        if answer.is_server_error or answer.status_code in _PASSES:
            raise SinkUnavailable(reason)
        if answer.is_redirect or answer.status_code in _OPERATOR:
            raise SinkRefused(reason)
        if self._times_refused(batch.number, first) < self._options.attempts:
            raise SinkUnavailable(f"{reason}; the node retries before it puts these rows aside")
        self._place.put_aside(batch, reason, rows)

    def _times_refused(self, number: int, first: int) -> int:
        """Count a refusal of the request whose first row is ``first``, and return the new count."""
        place, times = self._refused
        self._refused = (number, first), times + 1 if place == (number, first) else 1
        return self._refused[1]

    def _post(self, key: str, body: bytes, remaining: float) -> httpx.Response:
        if self._client is None:
            self._client = httpx.Client(headers=self._options.headers)
        headers = {"Content-Type": MEDIA_TYPE, "Idempotency-Key": key}
        timeout = min(self._options.timeout, remaining)
        try:
            return self._client.post(
                self._options.url, content=body, headers=headers, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise SinkUnavailable(
                f"{self._where} is not available: {error or type(error).__name__}"
            ) from error


def _shown(answer: httpx.Response) -> str:
    words = " ".join(answer.text.split())
    return words[:_BODY_SHOWN] or answer.reason_phrase
