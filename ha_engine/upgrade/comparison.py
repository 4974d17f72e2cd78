"""Compare another version with this installation, with the database and with the other nodes.

The comparison is pure. It makes one line for each subject: what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from ha_engine.postgres.schema_version import SchemaState
from ha_engine.query.runtime import SEMANTICS
from ha_engine.sync.hello import Hello, speak_alike
from ha_engine.upgrade.statement import MANIFEST, RECORD, Statement, versions

_CHECKPOINT = (SEMANTICS, "spark")
"""What wrote a checkpoint must be what continues it (``query.runtime.why_not_continued``)."""


class Verdict(Enum):
    """The ways in which two nodes can change from one version to the other, the best first."""

    FITS = "fits"
    UNKNOWN = "unknown"
    BOTH_AT_ONCE = "both at once"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Line:
    """The verdict on one subject; ``remedy`` is what to do, or empty."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}


def verdict_of(lines: Sequence[Line]) -> Verdict:
    """The worst verdict of all lines."""
    order = list(Verdict)
    return max((line.verdict for line in lines), key=order.index, default=Verdict.FITS)


def compare(
    here: Statement,
    target: Statement,
    database: SchemaState | str,
    peers: Mapping[str, Hello | str],
) -> list[Line]:
    """Compare ``target`` with the version ``here``.

    ``database`` is the state of the schema, or why it is not known. ``peers`` has the Hello of each
    other node, or why that node did not answer.
    """
    return [
        _wire(here, target),
        *_formats(here, target),
        _batches(here.runtime, target.runtime),
        _checkpoints(here.runtime, target.runtime),
        _schema(here, target, database),
        *(_peer(name, hello, here, target) for name, hello in peers.items()),
    ]


def _wire(here: Statement, target: Statement) -> Line:
    ranges = (
        f"{versions(target.protocol_min, target.protocol_max)}, this one "
        f"{versions(here.protocol_min, here.protocol_max)}"
    )
    if speak_alike(here, target):
        return Line("wire", Verdict.FITS, f"the target speaks sync protocol {ranges}")
    return Line(
        "wire",
        Verdict.BOTH_AT_ONCE,
        f"the target speaks sync protocol {ranges}, so the two versions refuse each other",
        "stop both nodes, and start both with the target",
    )


def _formats(here: Statement, target: Statement) -> Iterator[Line]:
    """A line for each format. Records go both ways between nodes; other files stay on a host."""
    for name in dict.fromkeys([*here.formats, *target.formats]):
        ours, theirs = here.formats.get(name), target.formats.get(name)
        if ours is not None and (theirs is None or not theirs.reads(ours.written)):
            yield _not_read_by_target(name, ours.written)
        elif theirs is not None and (ours is None or not ours.reads(theirs.written)):
            yield _not_read_here(name, theirs.written)
        else:
            yield Line(name, Verdict.FITS, f"each version reads the {name} of the other")


def _not_read_by_target(name: str, version: int) -> Line:
    text = f"the target does not read {name} {version}, which this version writes"
    if name == MANIFEST:
        remedy = "keep the data of both hosts until the target has taken a snapshot"
        return Line(name, Verdict.FITS, text, remedy)
    return Line(name, Verdict.IMPOSSIBLE, text, "choose a version that reads it")


def _not_read_here(name: str, version: int) -> Line:
    text = f"this version does not read {name} {version}, which the target writes"
    if name == RECORD:
        remedy = "stop both nodes, and start both with the target; there is no way back"
        return Line(name, Verdict.BOTH_AT_ONCE, text, remedy)
    if name == MANIFEST:
        return Line(name, Verdict.FITS, text, "to go back, do not count on snapshots of the target")
    remedy = "to go back, run 'ha-engine reinit' on one host after the other"
    return Line(name, Verdict.FITS, text, remedy)


def _batches(here: Mapping[str, str], target: Mapping[str, str]) -> Line:
    if not target:
        return Line(
            "batches",
            Verdict.UNKNOWN,
            "a wheel does not say which Python, Java and libraries it will run with",
            "install it into a directory of its own, and check that directory",
        )
    differing = _differing(here, target)
    if not differing:
        return Line("batches", Verdict.FITS, "both versions make the same batches")
    found = ", ".join(f"{name} {target.get(name, 'none')}" for name in differing)
    ours = ", ".join(f"{name} {here.get(name, 'none')}" for name in differing)
    return Line(
        "batches",
        Verdict.BOTH_AT_ONCE,
        f"the target has {found}, this one has {ours}, so batches may differ and the two versions "
        "refuse each other",
        "stop both nodes, and start both with the target, or install the same libraries with it",
    )


def _checkpoints(here: Mapping[str, str], target: Mapping[str, str]) -> Line:
    differing = [name for name in _differing(here, target) if name in _CHECKPOINT]
    if target and differing:
        return Line(
            "checkpoints",
            Verdict.BOTH_AT_ONCE,
            f"the target restores no snapshot of this version, since {' and '.join(differing)} "
            "differ",
            "keep the data of both hosts until the target has taken a snapshot",
        )
    verdict = Verdict.FITS if target else Verdict.UNKNOWN
    text = "each version continues the checkpoints of the other"
    return Line("checkpoints", verdict, text if target else "unknown, as the batches are")


def _schema(here: Statement, target: Statement, database: SchemaState | str) -> Line:
    if isinstance(database, str):
        if (here.schema_min, here.schema_max) == (target.schema_min, target.schema_max):
            return Line("schema", Verdict.FITS, "both versions use the same database schema")
        text, _, remedy = database.partition("; ")
        return Line("schema", Verdict.UNKNOWN, text, remedy)
    version, floor = database.version, database.floor
    if floor is not None and floor > target.schema_max:
        return Line(
            "schema",
            Verdict.IMPOSSIBLE,
            f"the schema is finalised for engines that know version {floor}, and the target knows "
            f"{target.schema_max}",
            "choose a version that knows it, or restore a dump of the database from before",
        )
    if version is None or version < target.schema_min:
        return Line(
            "schema",
            Verdict.FITS,
            f"the schema has version {version or 'none'}, and the target needs {target.schema_min}",
            "run 'ha-engine db upgrade' of the target first; nodes with this version continue",
        )
    if version > target.schema_max:
        return Line(
            "schema",
            Verdict.FITS,
            f"the schema has version {version}, and engines that know {floor} may use it",
            "do not run 'ha-engine db upgrade --finalize' before you go back",
        )
    return Line("schema", Verdict.FITS, f"the target works with schema version {version}")


def _peer(name: str, hello: Hello | str, here: Statement, target: Statement) -> Line:
    if isinstance(hello, str):
        return Line(
            name, Verdict.UNKNOWN, f"{name} does not say its version: {hello}", f"start {name}"
        )
    for statement, what in ((here, "this version"), (target, "the target")):
        runtime = statement.runtime or hello.runtime
        if speak_alike(hello, statement) and not _differing(hello.runtime, runtime):
            return Line(name, Verdict.FITS, f"{name} runs ha-engine {hello.engine} and fits {what}")
    return Line(
        name,
        Verdict.BOTH_AT_ONCE,
        f"{name} runs ha-engine {hello.engine}, which fits neither this version nor the target",
        f"run this command on the host of {name} too",
    )


def _differing(here: Mapping[str, str], target: Mapping[str, str]) -> list[str]:
    return sorted(n for n in {*here, *target} if here.get(n) != target.get(n))
