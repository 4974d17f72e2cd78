"""The base: the state that the trimmed records of a journal left, onto which the rest is replayed.

It follows from the journal up to ``position`` alone, so it is the same on every node. A node takes
it only at a position before which no query needs a record (RULES.md#r28). Then no query asks for a
mark up to there again, and every event up to there is in a batch.
"""

from __future__ import annotations

from dataclasses import replace

from ha_engine.core.deployment import Deployment
from ha_engine.types import Base, Mark, QueryBase, QueryVersion


def base_of(deployment: Deployment, journal: Base) -> Base:
    """``journal`` with the state of the queries that all records so far have left."""
    versions = deployment.versions
    queries = tuple(_base_of(deployment, version) for version in versions.of.values())
    done = {name: one.last.number for name, one in deployment.marks.items()}
    skips = sorted(skip for skip in deployment.skips.known if skip[1] > done.get(skip[0], 0))
    return replace(journal, application=versions.application, queries=queries, skips=tuple(skips))


def unwritten(deployment: Deployment) -> list[Mark]:
    """The marks that a restored node must write again, if a forced failover gave up their records
    (RULES.md#r26)."""
    return [mark for marks in deployment.marks.values() for mark in marks.unwritten]


def _base_of(deployment: Deployment, version: QueryVersion) -> QueryBase:
    name, versions = version.query, deployment.versions
    lineage, carried_on = versions.lineages[name], versions.carried_on.get(name)
    marks = deployment.marks.get(name)
    if marks is None:
        first = version.first
        last = deployment.marks_of_others.get(name, first)
        # If the events that the query lacked were trimmed, it restarted after them (RULES.md#r28).
        last = max(last, first, key=lambda mark: mark.through)
        return QueryBase(version, lineage, carried_on, first, last)
    published, unanswered = tuple(sorted(marks.recorded.items())), tuple(sorted(marks.unanswered))
    ahead = tuple(marks.unwritten)
    return QueryBase(
        version, lineage, carried_on, marks.initial, marks.last, published, unanswered, ahead
    )
