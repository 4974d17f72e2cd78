"""The object store below a URL, which the source, the sink and the checkpoints share.

The requests are those of the library obstore. A request that fails is repeated only twice and only
within the option ``timeout``, since the engine repeats failed reads and deliveries itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.errors import EngineError

T = TypeVar("T")

PAGE_OBJECTS = 1_000
_SCHEMES = ("s3", "gs", "az", "file")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CREDENTIALS = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "ExpiredToken")
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint")
_PASSES = ("SlowDown", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict")
_RETRIES = 2
_REASON_CHARACTERS_MAX = 300


class StoreOptions(BaseModel):
    """The options that the source and the sink share.

    - ``url``: the bucket and the folder in it, such as ``s3://events/orders``. The other schemes
      are ``gs`` and ``az``, whose credentials come from the environment, and ``file``.
    - ``region``: the region of the bucket.
    - ``endpoint``: the URL of a server that is not Amazon's. The scheme ``http`` sends everything
      unencrypted.
    - ``path_style``: the bucket is in the path of a request, and not in its host name.
    - ``access_key_id``, ``secret_access_key`` and ``session_token``: the credentials. Without them,
      the environment variables ``AWS_*``, or the role of the instance or container, have them.
    - ``anonymous``: send requests without credentials.
    - ``ca_file``: certificates that may sign the server's, besides those of the system.
    - ``timeout``: how long a request may take. It is only repeated within this time, so all takes
      at most twice as long.
    """

    # An error of several keys would show all of them, and with them the secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    region: Annotated[str, Field(min_length=1)] | None = None
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@?#]+/?$")] | None = None
    path_style: bool = True
    access_key_id: Annotated[str, Field(min_length=1)] | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    anonymous: bool = False
    ca_file: Path | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 30.0

    @model_validator(mode="after")
    def _complete(self) -> StoreOptions:
        parts = urlsplit(self.url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(f"url needs a scheme: one of {', '.join(_SCHEMES)}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("url has only a bucket and a folder; credentials have their own keys")
        if parts.scheme != "file" and not parts.netloc:
            raise ValueError(f"url needs a bucket, such as {parts.scheme}://bucket/folder")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        if self.anonymous and self.access_key_id is not None:
            raise ValueError("anonymous: true needs no access_key_id")
        only_s3 = (self.region, self.endpoint, self.access_key_id)
        if parts.scheme != "s3" and (any(only_s3) or self.anonymous or not self.path_style):
            raise ValueError(
                "region, endpoint, path_style, anonymous and the access key are for s3 only"
            )
        return self


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object with ``size`` bytes under ``key``, which is relative to the URL. ``version`` is its
    ETag, which changes with its content."""

    key: str
    size: int
    version: str
    modified: datetime

    @property
    def order(self) -> tuple[int, str]:
        """The time of the object in microseconds since 1970, and its key."""
        return (self.modified - _EPOCH) // timedelta(microseconds=1), self.key

    @classmethod
    def of(cls, found: Any) -> ObjectMeta:
        version = found["e_tag"] or found["last_modified"].isoformat()
        return cls(found["path"], found["size"], version, found["last_modified"])


class ObjectGone(Exception):
    """The object does not exist."""


class ObjectChanged(Exception):
    """The object has another version than the request wants."""


class Store:
    """The objects below the URL. All other errors are of the classes ``refused`` and
    ``unavailable``."""

    def __init__(
        self,
        options: StoreOptions,
        refused: type[EngineError],
        unavailable: type[EngineError],
    ) -> None:
        self._options = options
        self.refused, self.unavailable = refused, unavailable
        at = f" at {options.endpoint.rstrip('/')}" if options.endpoint else ""
        self.where = f"{options.url.rstrip('/')}{at}"
        self._store: Any = None

    def open(self) -> None:
        """Make the client. This sends no request."""
        self.close()
        obstore = library("obstore.store", "s3", self.refused)
        options = self._options
        if options.url.startswith("file:"):
            self._store = self._made(lambda: obstore.from_url(options.url))
            return
        self._store = self._made(
            lambda: obstore.from_url(
                options.url,
                config=self._config(),
                client_options=self._client_options(),
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=options.timeout),
                    "backoff": {"max_backoff": timedelta(seconds=1)},
                },
            )
        )

    def close(self) -> None:
        """Forget the client. A second call does nothing."""
        self._store = None

    # -- requests ----------------------------------------------------------------------------------

    def listed(self, after: str) -> Iterator[ObjectMeta]:
        """Yield the objects whose keys are greater than ``after``, in the order of their keys.

        Each request is for a page of them. A directory has no order, so it is listed whole.
        """
        found = self._listed(after)
        if self._is_local:
            yield from sorted(found, key=lambda meta: meta.key)
            return
        last = after
        for meta in found:
            if meta.key <= last:
                raise self.refused(
                    f"{self.where} lists {meta.key} after {last}: it does not list keys in their "
                    "order, as a directory bucket or a hierarchical namespace; use another bucket"
                )
            last = meta.key
            yield meta

    def _listed(self, after: str) -> Iterator[ObjectMeta]:
        return self._pages(lambda store: store.list(offset=after or None, chunk_size=PAGE_OBJECTS))

    def _pages(self, begin: Callable[[Any], Any]) -> Iterator[ObjectMeta]:
        pages = self._request(begin, "ListBucket")
        while (page := self._request(lambda _: next(pages, None), "ListBucket")) is not None:
            yield from map(ObjectMeta.of, page)

    def meta(self, key: str, version: str) -> ObjectMeta:
        """Return the object that has this version. Raises ObjectGone and ObjectChanged."""

        # The answer to a GET says whether the object or the bucket is missing, that to a HEAD not.
        def get(store: Any) -> ObjectMeta:
            return ObjectMeta.of(store.get(key, options={"range": (0, 1)}).meta)

        found = self._request(get, "GetObject", key)
        if found.version != version:
            raise ObjectChanged(key)
        return found

    def piece(self, meta: ObjectMeta, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end``. Raises ObjectGone and ObjectChanged."""

        def get(store: Any) -> tuple[ObjectMeta, bytes]:
            # The version is compared here too, for a server that ignores the condition.
            options = {"range": (start, end)} | self._condition(meta)
            found = store.get(meta.key, options=options)
            return ObjectMeta.of(found.meta), bytes(found.bytes())

        found, content = self._request(get, "GetObject", meta.key)
        if found.version != meta.version:
            raise ObjectChanged(meta.key)
        if len(content) != end - start:
            raise self.unavailable(
                f"{self.where} answers {len(content)} bytes of {meta.key} instead of {end - start}"
            )
        return content

    def below(self, folder: str) -> Iterator[ObjectMeta]:
        """The objects in a folder and below it, in any order."""
        return self._pages(lambda store: store.list(folder))

    def folders(self, folder: str = "") -> list[str]:
        """The folders in a folder, or below the URL."""
        found = self._request(lambda store: store.list_with_delimiter(folder), "ListBucket")
        return list(found["common_prefixes"])

    def put(self, key: str, content: bytes | Path) -> None:
        """Create or replace an object. ``content`` is a file or its bytes."""
        self._request(lambda store: store.put(key, content), "PutObject", key)

    def copy(self, key: str, new: str) -> None:
        """Copy an object within the store. Raises ObjectGone."""
        self._request(lambda store: store.copy(key, new), "PutObject", key)

    def delete(self, keys: list[str]) -> None:
        """Delete those of the objects that exist."""
        if keys:
            self._request(lambda store: store.delete(keys), "DeleteObject")

    def content(self, key: str, size_max: int) -> bytes | None:
        """Return the content of an object, or None if it has more than ``size_max`` bytes. Raises
        ObjectGone."""

        def get(store: Any) -> bytes | None:
            found = store.get(key)
            return bytes(found.bytes()) if found.meta["size"] <= size_max else None

        return self._request(get, "GetObject", key)

    def create(self, key: str, content: bytes, media_type: str) -> bool:
        """Create an object with one request, and return False if ``key`` exists already.

        Nobody sees a part of an object. Only a request of several parts would have no such
        condition in all stores, so there is none.
        """
        exists = library("obstore.exceptions", "s3", self.refused).AlreadyExistsError
        attributes = {} if self._is_local else {"Content-Type": media_type}
        try:
            self._request(
                lambda store: store.put(
                    key, content, mode="create", use_multipart=False, attributes=attributes
                ),
                "PutObject",
                key,
                passes=exists,
            )
        except exists:
            return False
        except ObjectGone as error:
            raise self.refused(f"{self.where} cannot be written: it has no folder {key}") from error
        return True

    # -- errors ------------------------------------------------------------------------------------

    def _request(
        self,
        work: Callable[[Any], T],
        right: str,
        key: str = "",
        passes: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> T:
        if self._store is None:
            raise self.unavailable(f"{self.where} is not connected")
        try:
            return work(self._store)
        except passes:
            raise
        except Exception as error:
            raise self._translated(error, right, key) from error

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:
            reason = self._without_secrets(str(error).partition("\n")[0])
            raise self.refused(f"{self.where} cannot be opened: {reason}") from error

    def _translated(self, error: Exception, right: str, key: str) -> Exception:
        """Translate an error of obstore. Its text has the answer of the server."""
        text = str(error)
        status, code = _first(r"status code: (\d{3})", text), _first(r"<Code>(\w+)</Code>", text)
        said = self._said(text, status, code)
        whose = f"{key} in {self.where}" if key else self.where
        if code == "NoSuchBucket":
            return self.refused(f"{self.where} has no such bucket; create it, or correct url")
        if code in _CREDENTIALS or status == "401":
            return self.refused(
                f"{self.where} refuses the credentials ({code or status}); correct access_key_id, "
                "secret_access_key and session_token, or those in the environment"
            )
        if code in _REGION or "redirect" in said:
            return self.refused(f"{whose}: {said}; correct region and endpoint")
        if code in _PASSES or status == "429" or (status or "").startswith("5"):
            return self.unavailable(f"{whose} is not available: {said}")
        if status == "403" or type(error).__name__ == "PermissionDeniedError":
            return self.refused(
                f"{whose} refuses the request: {said}; give these credentials the right s3:{right}"
            )
        if status == "412" or type(error).__name__ == "PreconditionError":
            return ObjectChanged(key)
        # A server of S3 gives a code. Without one, another server answers, such as a proxy.
        if isinstance(error, FileNotFoundError) and (status is None or code is not None):
            return ObjectGone(key)
        if type(error).__name__ == "InvalidPathError":
            return self.refused(
                f"{self.where} has an object whose key cannot be used: {said}; rename the object"
            )
        if status is None and "certificate" in re.sub(r"https?://\S+", "", text).lower():
            return self.refused(
                f"{self.where} cannot be reached by TLS: {said}; correct ca_file or the server's "
                "certificate"
            )
        if (status or "").startswith("4"):
            advice = "" if code else "; correct url and endpoint"
            return self.refused(f"{whose} answers: {said}{advice}")
        if "169.254." in text:
            said += "; without access_key_id, the instance or container needs a role"
        return self.unavailable(f"{whose} is not available: {said}")

    def _said(self, text: str, status: str | None, code: str | None) -> str:
        """Return what the server or the library said, in a line without secrets."""
        if status is not None:
            message = _first(r"<Message>([^<]*)</Message>", text)
            said = f"status {status}" + (f", {code}: {message}" if code else "")
            return said[:_REASON_CHARACTERS_MAX]
        reason = text.partition("\n")[0].rpartition(" - ")[2]
        if causes := re.findall(r'message: "([^"]+)"', text) or re.findall(r"kind: (\w+)", text):
            reason += f" ({causes[-1]})"
        return self._without_secrets(reason)

    def _without_secrets(self, text: str) -> str:
        # A URL of Azure may have a signature behind the question mark.
        text = re.sub(r"\?\S*", "", text)
        for secret in (self._options.secret_access_key, self._options.session_token):
            if secret is not None:
                text = text.replace(secret.get_secret_value(), "…")
        return text[:_REASON_CHARACTERS_MAX]

    # -- configuration -----------------------------------------------------------------------------

    @property
    def _is_local(self) -> bool:
        return self._options.url.startswith("file:")

    @staticmethod
    def _condition(meta: ObjectMeta) -> dict[str, str]:
        """The version as a condition, unless the store has no ETag, but only a time."""
        return {"if_match": meta.version} if meta.version != meta.modified.isoformat() else {}

    def _config(self) -> dict[str, Any]:
        options = self._options
        if not options.url.startswith("s3:"):
            return {}
        endpoint = None if options.endpoint is None else options.endpoint.rstrip("/")
        if endpoint is not None and not options.path_style:
            scheme, _, host = endpoint.partition("//")
            endpoint = f"{scheme}//{urlsplit(options.url).netloc}.{host}"
        secret, token = options.secret_access_key, options.session_token
        written = {
            "region": options.region,
            "endpoint": endpoint,
            "access_key_id": options.access_key_id,
            "secret_access_key": None if secret is None else secret.get_secret_value(),
            "session_token": None if token is None else token.get_secret_value(),
        }
        config: dict[str, Any] = {name: one for name, one in written.items() if one is not None}
        if options.anonymous:
            config["skip_signature"] = True
        # The guarantee of the sink needs it, whatever the environment says.
        return config | {
            "virtual_hosted_style_request": not options.path_style,
            "conditional_put": "etag",
        }

    def _client_options(self) -> dict[str, Any]:
        options, limit = self._options, timedelta(seconds=self._options.timeout)
        found: dict[str, Any] = {"timeout": limit, "connect_timeout": min(limit, _CONNECT)}
        if options.endpoint is not None and options.endpoint.startswith("http:"):
            found["allow_http"] = True
        if options.ca_file is not None:
            try:
                found["root_certificate"] = options.ca_file.read_bytes()
            except OSError as error:
                reason = f"{options.ca_file} cannot be read: {error.strerror}"
                raise self.refused(reason) from error
        return found


_CONNECT = timedelta(seconds=5)


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None
