"""The section ``access``: the rights of callers, over HTTP and over gRPC."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ha_engine.auth import Access, Right, digest_of
from ha_engine.config.sections import Name, Section

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Hexadecimal SHA-256."""


class AccessConfig(Section):
    """The callers and their rights. You choose a name for each caller, and add the SHA-256 of the
    caller's token. The command ha-engine config token makes a token and prints its SHA-256."""

    admin: dict[Name, Digest] = Field(
        default_factory=dict,
        description="Callers that may do everything, such as a switchover; with no entry, every "
        "caller may. Reloadable.",
    )
    ingest: dict[Name, Digest] = Field(
        default_factory=dict,
        description="Callers that may send events, over HTTP and gRPC; with no entry, every caller "
        "may. Reloadable.",
    )
    read: dict[Name, Digest] = Field(
        default_factory=dict,
        description="Callers that may read status, history and metrics; with no entry, every "
        "caller may. The page at / asks for one of these tokens; every node must list this token. "
        "Reloadable.",
    )

    deploy: dict[Name, Digest] = Field(
        default_factory=dict,
        description="Callers that may deploy applications, whose Python runs on every host, and do "
        "everything else; with no entry, no caller may deploy. Reloadable.",
    )

    @property
    def checks(self) -> Access:
        """The right of each token, which servers check."""
        return Access.of(
            {
                Right.DEPLOY: self.deploy,
                Right.ADMIN: self.admin,
                Right.INGEST: self.ingest,
                Right.READ: self.read,
            }
        )

    @model_validator(mode="after")
    def _an_operator_comes_first(self) -> AccessConfig:
        if (self.ingest or self.read) and not self.admin:
            raise ValueError(
                "there are tokens but none below access.admin, so every caller may run switchover "
                "and failover; add one below access.admin"
            )
        return self

    @model_validator(mode="after")
    def _a_token_is_for_one_thing(self) -> AccessConfig:
        digests = [*self.admin.values(), *self.ingest.values(), *self.read.values()]
        digests += self.deploy.values()
        if len(set(digests)) < len(digests):
            raise ValueError("a digest is listed twice; make a token for each name and right")
        if digest_of("") in digests:
            raise ValueError(
                "a digest is that of an empty token; 'ha-engine config token' makes one"
            )
        return self
