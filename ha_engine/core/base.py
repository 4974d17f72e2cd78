"""The base of a journal: the state that its trimmed records left. A node loads the base, then
replays the records after it.

A base depends only on the records up to its position, so every node makes the same base. A node
makes a base only at a position before which no query needs a record (RULES.md#r28). No query asks
again for a mark up to the position of the base. Every event up to the position of the base is in a
batch.
"""

from __future__ import annotations

from dataclasses import replace

from ha_engine.core.deployment import Deployment
from ha_engine.types import Base, Mark, QueryBase, QueryVersion


def base_of(deployment: Deployment, journal: Base) -> Base:
    """Add to the base ``journal`` the state of the queries after the newest record."""
    versions = deployment.versions
    queries = tuple(_base_of(deployment, version) for version in versions.of.values())
    done = {name: one.last.number for name, one in deployment.marks.items()}
    skips = sorted(skip for skip in deployment.skips.known if skip[1] > done.get(skip[0], 0))
    return replace(
        journal,
        application=versions.application,
        queries=queries,
        skips=tuple(skips),
        deployed=versions.deployed,
    )


def unwritten(deployment: Deployment) -> list[Mark]:
    """The marks of a restored snapshot whose records the journal lacks.

    A new holder appends these marks, since a forced failover gave up their records (RULES.md#r26).
    """
    return [mark for marks in deployment.marks.values() for mark in marks.unwritten]


def _base_of(deployment: Deployment, version: QueryVersion) -> QueryBase:
    name, versions = version.query, deployment.versions
    lineage, carried_on = versions.lineages[name], versions.carried_on.get(name)
    marks = deployment.marks.get(name)
    if marks is None:
        first = version.first
        last = deployment.marks_of_others.get(name, first)
        # If the journal trimmed events that a query lacked, the query's version restarted after
        # these events (RULES.md#r28).
        last = max(last, first, key=lambda mark: mark.through)
        return QueryBase(version, lineage, carried_on, first, last)
    published, unheard = tuple(sorted(marks.recorded.items())), tuple(sorted(marks.unanswered))
    ahead = tuple(marks.unwritten)
    return QueryBase(
        version, lineage, carried_on, marks.initial, marks.last, published, unheard, ahead
    )
