"""Authorization by bearer tokens (RFC 6750).

A node knows only the SHA-256 of each token. Tokens are long and random, so an attacker who knows a
digest would have to guess the whole token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

TOKEN_BYTES = 32
_SCHEME = "bearer "
_RANGES = b"ha-engine: ranges of the journal"
"""The purpose of the token that ``token_of`` derives."""


class Right(Enum):
    """Permission that an operation needs. A token for ADMIN gives every permission but DEPLOY, and
    a token for DEPLOY gives every permission."""

    NOTHING = "nothing"
    READ = "read"
    INGEST = "ingest"
    ADMIN = "admin"
    DEPLOY = "deploy"


@dataclass(frozen=True, slots=True)
class Denied:
    """The refusal of a request. ``known`` is True if the token is valid for another right."""

    known: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Access:
    """The right of each token. Every caller has the rights that are not in ``guarded``, except
    DEPLOY: whoever deploys an application runs code on each host.

    The keys of ``rights`` are the SHA-256 digests (hex) of the tokens.
    """

    rights: Mapping[str, Right]
    guarded: frozenset[Right]

    @classmethod
    def of(cls, tokens: Mapping[Right, Mapping[str, str]]) -> Access:
        """Build the access from ``tokens``: for each right, the digests by the callers' names.

        Every caller has a right for which ``tokens`` lists no caller.
        """
        rights = {one: right for right, named in tokens.items() for one in named.values()}
        return cls(rights, frozenset(right for right, named in tokens.items() if named))

    def denial(self, right: Right, authorization: str | None) -> Denied | None:
        """Return why a request is refused, or None if the request is permitted.

        ``authorization`` is the Authorization header of the request.
        """
        deploys = right is Right.DEPLOY
        if right not in self.guarded and not deploys:
            return None
        found = self._right_of(authorization)
        if found in (right, Right.DEPLOY) or (found is Right.ADMIN and not deploys):
            return None
        if found is None:
            return Denied(
                False, f"this request needs a token for {right.value}: Authorization: Bearer ..."
            )
        return Denied(
            True, f"this token is for {found.value}, but this request needs one for {right.value}"
        )

    def knows(self, authorization: str | None) -> bool:
        """Whether the Authorization header of a request has a valid token."""
        return self._right_of(authorization) is not None

    def _right_of(self, authorization: str | None) -> Right | None:
        token = _token(authorization)
        return self.rights.get(digest_of(token)) if token else None


OPEN = Access.of({})


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_of(secret: str) -> str:
    """The token with which the executors of a Spark cluster read the journal.

    Both ends derive the token from the cluster's ``secret``, which the token does not reveal
    (HMAC-SHA256).
    """
    return hmac.new(secret.encode("utf-8", "surrogateescape"), _RANGES, "sha256").hexdigest()


def bears(authorization: str | None, token: str) -> bool:
    """Whether an Authorization header has ``token``. The comparison takes the same time for every
    wrong token."""
    return hmac.compare_digest(digest_of(_token(authorization)), digest_of(token))


def _token(authorization: str | None) -> str:
    """The bearer token in an Authorization header; empty if the header has no bearer token."""
    header = authorization or ""
    return header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
