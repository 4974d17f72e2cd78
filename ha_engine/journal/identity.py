"""The identity of a journal is one small JSON file beside the journal's segments, replaced as a
whole.

The identity file has what the segments lack: the group, the current journal_id (RULES.md#r8), and
the epochs of trimmed records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ha_engine.errors import JournalDamaged, UnknownJournalVersion
from ha_engine.system import json_file
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import Position

FILE_NAME = "identity.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """The content of the identity file. ``former`` are retired journal ids, which older segments
    still have.

    ``epochs`` are the first positions of the epochs that began in trimmed records.
    """

    group: str
    group_id: str | None
    journal_id: str
    former: tuple[str, ...] = ()
    epochs: tuple[Position, ...] = ()


def load(directory: Path, files: Files = OS_FILES) -> JournalIdentity | None:
    """Load the identity file in ``directory``, or return None if there is no such file.

    Raises JournalDamaged, UnknownJournalVersion, OSError.
    """
    path = directory / FILE_NAME
    try:
        tree = json_file.load(path, files)
        version = tree["version"]
        if version == VERSION:
            return _from_tree(tree)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(str(path), 0, "the file is not a journal identity") from error
    raise UnknownJournalVersion(
        f"{path} has format version {version}, but this engine reads {VERSION}; "
        "run the engine version that wrote it"
    )


def store(directory: Path, identity: JournalIdentity, files: Files = OS_FILES) -> None:
    """Replace the identity file durably; a crash leaves the old file or the new one. Raises
    OSError."""
    json_file.store(directory / FILE_NAME, _to_tree(identity), files)


def _to_tree(identity: JournalIdentity) -> dict[str, Any]:
    return {
        "version": VERSION,
        "group": identity.group,
        "group_id": identity.group_id,
        "journal_id": identity.journal_id,
        "former": identity.former,
        "epochs": [[first.epoch, first.sequence] for first in identity.epochs],
    }


def _from_tree(tree: dict[str, Any]) -> JournalIdentity:
    return JournalIdentity(
        group=tree["group"],
        group_id=tree["group_id"],
        journal_id=tree["journal_id"],
        former=tuple(tree["former"]),
        epochs=tuple(Position(epoch, sequence) for epoch, sequence in tree["epochs"]),
    )
