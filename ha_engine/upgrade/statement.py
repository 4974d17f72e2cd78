"""The compatibility statement: what an installation of the engine reads, writes and works with.

Every number comes from the constant that the code itself uses, so no number is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from ha_engine import __version__
from ha_engine.errors import StatementMissing
from ha_engine.journal import identity, reading, record
from ha_engine.postgres import schema_version
from ha_engine.query.runtime import runtime_versions
from ha_engine.snapshot import base_file, manifest
from ha_engine.sync.hello import PROTOCOL_MAX, PROTOCOL_MIN

RECORD, MANIFEST = "journal record", "snapshot manifest"
"""Records go from node to node. A manifest is the one format that a node can do without."""


@dataclass(frozen=True, slots=True)
class Format:
    """The versions of a file format that the engine reads, and the newest one that it writes."""

    read_min: int
    read_max: int
    written: int

    def reads(self, version: int) -> bool:
        return self.read_min <= version <= self.read_max


@dataclass(frozen=True, slots=True)
class Statement:
    """The compatibility statement of one version of the engine.

    ``protocol_min`` and ``protocol_max`` are versions of sync.proto, as in a Hello. ``formats``
    maps names of file formats to their versions. ``schema_min`` is the oldest version of the
    database's schema with which the engine works, and ``schema_max`` the newest that it knows.
    ``runtime`` has the versions that nodes compare (``query.runtime``). It is empty for an engine
    that is not installed. ``statement`` is the version of this form.
    """

    engine: str
    protocol_min: int
    protocol_max: int
    formats: Mapping[str, Format]
    schema_min: str
    schema_max: str
    runtime: Mapping[str, str]
    statement: Literal[1] = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def statement_here() -> Statement:
    """The statement of this installation. Blocks for some 0.1 s while Java prints its version."""
    return Statement(
        engine=__version__,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        formats={
            RECORD: _only(record.VERSION),
            "journal segment": _only(reading.FILE_VERSION),
            "journal identity": _only(identity.VERSION),
            "journal base": _up_to(base_file.VERSION, base_file.VERSION_WITH_SHADOWS),
            MANIFEST: _up_to(manifest.VERSION_MIN, manifest.VERSION),
        },
        schema_min=schema_version.required(),
        schema_max=schema_version.newest(),
        runtime=runtime_versions(),
    )


def parse_statement(text: str, origin: str) -> Statement:
    """Parse the JSON of a statement; ``origin`` names it in the message.

    Ignores what a later version adds. Raises StatementMissing if ``text`` is no statement.
    """
    try:
        return TypeAdapter(Statement).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise StatementMissing(
            f"{origin} gives no compatibility statement ({where}: {first['msg']}); a statement is "
            "what 'ha-engine version --json' of that version prints"
        ) from error


def versions(lowest: object, highest: object) -> str:
    """A range of versions, for people."""
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


def _only(version: int) -> Format:
    return Format(version, version, version)


def _up_to(oldest: int, newest: int) -> Format:
    return Format(oldest, newest, newest)
