"""Compose an archive from the applications that a group runs and those that an operator sends.

A group runs one archive (RULES.md#r36). Each application in it has the name in its YAML file, and
the sender of one leaves all others as they are (ADR 52).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from pydantic import BaseModel, ValidationError

from ha_engine.deploy.archive import Archive, pack
from ha_engine.deploy.loading import unpacked
from ha_engine.errors import ApplicationError, DeploymentRefused
from ha_engine.formats import strict_yaml
from ha_engine.query.application import StreamApplication
from ha_engine.query.file_words import Name
from ha_engine.query.layout import APPLICATION, APPLICATIONS

ORIGINS = ".origins.json"
"""A file of a composed archive, with the origin of each application that has an earlier one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The deployment that brought the files of an application; the fields are those of
    ``types.Deployed``."""

    number: int
    by: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Part:
    """One application: its files by their path in its directory, and the deployment that brought
    them, or None for the deployment of the archive itself."""

    files: Mapping[str, bytes]
    origin: Origin | None = None


def parts_of(archive: Archive, of: Origin | None = None) -> dict[str, Part]:
    """The applications in an archive by their names. If ``of`` is its deployment, it brought those
    that have no earlier origin. Raises ApplicationError."""
    origins = _origins(archive) if of is not None else {}
    found = dict[str, Part]()
    for place, files in _by_place(archive):
        name = _name_of(files[APPLICATION], place)
        if name in found:
            raise ApplicationError(f"two applications of the archive have the name {name!r}")
        found[name] = Part(files, origins.get(name, of))
    return found


def parts_of_file(running: StreamApplication) -> dict[str, Part]:
    """The applications of the config's file, of which each node has a copy, with the files that
    they name. ``running`` are those that this node loaded from it.

    Raises DeploymentRefused if the archive would not have what runs, ApplicationError.
    """
    archive = pack(running.path)
    with unpacked(archive) as application:
        if application.digest != running.digest:
            raise DeploymentRefused(
                f"{running.path} changed after the start of this node; restart the nodes with it, "
                "or deploy it first"
            )
    if running.has_functions and running.path.is_file():
        # A function may import a module at its first row, long after each check.
        beside = {one.name for one in running.path.parent.glob("*.py")} - archive.files.keys()
        if beside:
            raise DeploymentRefused(
                f"{running.path} does not name {', '.join(sorted(beside))} beside it, which its "
                "functions may import; deploy it first, in a directory with what it imports"
            )
    return parts_of(archive)


def changed(present: Mapping[str, Part], sent: Mapping[str, Part]) -> dict[str, Part]:
    """The present applications with those that were sent. One that was sent as it is present keeps
    its origin."""
    new = {
        name: Part(part.files)
        for name, part in sent.items()
        if name not in present or present[name].files != part.files
    }
    return {**present, **new}


def composed(parts: Mapping[str, Part]) -> Archive:
    """The archive with these applications. A single one is at the root of the archive, as if it had
    been packed alone. Raises ApplicationError."""
    files = {
        f"{'' if len(parts) == 1 else f'{APPLICATIONS}/{name}/'}{path}": content
        for name, part in parts.items()
        for path, content in part.files.items()
    }
    earlier = {name: asdict(one.origin) for name, one in parts.items() if one.origin is not None}
    if earlier:
        files[ORIGINS] = json.dumps(earlier, sort_keys=True).encode()
    return Archive.of(files)


def _by_place(archive: Archive) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the directory of each application in the archive, and its files."""
    if APPLICATION in archive.files:
        yield "", {name: file for name, file in archive.files.items() if name != ORIGINS}
        return
    within = dict[str, dict[str, bytes]]()
    for name, content in archive.files.items():
        match PurePosixPath(name).parts:
            case (first, place, *path) if first == APPLICATIONS and path not in ([], [ORIGINS]):
                within.setdefault(place, {})["/".join(path)] = content
    for place, files in within.items():
        if APPLICATION in files:
            yield f"{APPLICATIONS}/{place}/", files


class _Named(BaseModel):
    name: Name


def _name_of(file: bytes, place: str) -> str:
    try:
        return _Named.model_validate(strict_yaml.parse(file.decode())).name
    except (strict_yaml.NotYaml, UnicodeDecodeError) as error:
        raise ApplicationError(f"{place}{APPLICATION}: is not YAML: {error}") from None
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ApplicationError(f"{place}{APPLICATION}: name: {reason}") from None


def _origins(archive: Archive) -> dict[str, Origin]:
    """The origins in a deployed archive. Only the active writes them, so they are valid."""
    found = json.loads(archive.files.get(ORIGINS, b"{}"))
    return {name: Origin(**one) for name, one in found.items()}
