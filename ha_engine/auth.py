"""Authorization by bearer tokens (RFC 6750); a node knows only the SHA-256 of each.

Tokens are long and random, so a plain digest protects them: an attacker would have to guess the
whole token.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

TOKEN_BYTES = 32
_SCHEME = "bearer "


class Right(Enum):
    """Permission that an operation needs. A token for ADMIN gives every one."""

    NOTHING = "nothing"
    READ = "read"
    INGEST = "ingest"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Denied:
    """``known``: the token is one of ours, for something else."""

    known: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Access:
    """``rights`` by the SHA-256 (hex) of a token. What is not ``guarded`` is open to all."""

    rights: Mapping[str, Right]
    guarded: frozenset[Right]

    @classmethod
    def of(cls, tokens: Mapping[Right, Mapping[str, str]]) -> Access:
        """From the digests by name, for each right; a right that nobody has is open to all."""
        rights = {one: right for right, named in tokens.items() for one in named.values()}
        return cls(rights, frozenset(right for right, named in tokens.items() if named))

    def denial(self, right: Right, authorization: str | None) -> Denied | None:
        """``authorization`` is the header of that name. None: go on."""
        if right not in self.guarded:
            return None
        token = _token(authorization)
        found = self.rights.get(digest_of(token)) if token else None
        if found in (right, Right.ADMIN):
            return None
        if found is None:
            return Denied(
                False, f"this request needs a token for {right.value}: Authorization: Bearer ..."
            )
        return Denied(
            True, f"this token is for {found.value}, but this request needs one for {right.value}"
        )


OPEN = Access.of({})


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _token(authorization: str | None) -> str:
    """Empty when there is none."""
    said = authorization or ""
    return said[len(_SCHEME) :].strip() if said.lower().startswith(_SCHEME) else ""
