"""The applications that were deployed to a node, in its data directory.

    applications/current.json           which of them the node runs
    applications/7-1f0c.../deployed.json   who deployed it, and when
    applications/7-1f0c.../archive.zip
    applications/7-1f0c.../files/       the unpacked archive
    applications/7-1f0c.../shadow/      the unpacked archive of the shadow, if there is one
    applications/7-1f0c.../shadow.zip

The journal decides which application a node runs. This directory only lets the next process start
with it at once, so a lost or older directory costs one more restart (RULES.md#r36).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ha_engine.deploy.archive import Archive, id_of
from ha_engine.errors import ApplicationError
from ha_engine.system.disk import disk
from ha_engine.system.files import OS_FILES, make_directory, replace_file
from ha_engine.types import Deployed

KEPT = 20
"""So many deployments stay on the disk for ``app rollback`` and ``app diff``."""
_CURRENT, _META, _ZIP, _FILES = "current.json", "deployed.json", "archive.zip", "files"
_SHADOW, _SHADOW_ZIP = "shadow", "shadow.zip"


class DeployedApplications:
    """The directory ``applications`` of the data directory ``home``. All methods block, and raise
    DiskFailed."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "applications"

    def current(self) -> tuple[Path, dict[str, Any]] | None:
        """The directory of what this node runs, and the fields of its deployment but the archive.
        None if the node runs the application of the file in its config."""
        found = _read(self._directory / _CURRENT)
        if found is None:
            return None
        place = self._directory / str(found.get("place"))
        meta = _whole(place)
        return None if meta is None else (place / _FILES, meta)

    def keep(self, deployed: Deployed | None) -> None:
        """Make ``deployed`` the application of the next start, or that of the config's file if it
        is None. Raises ApplicationError if its archive is damaged."""
        with disk(self._directory):
            if deployed is None:
                (self._directory / _CURRENT).unlink(missing_ok=True)
                return
            make_directory(self._directory)
            place = f"{deployed.number}-{deployed.id[:16]}"
            if _whole(self._directory / place) is None:
                shutil.rmtree(self._directory / place, ignore_errors=True)
                self._add(place, deployed)
            current = json.dumps({"place": place}).encode()
            replace_file(self._directory / _CURRENT, [current])
            self._remove_old(place)

    def history(self) -> list[dict[str, Any]]:
        """The fields of each kept deployment but its archive, newest first."""
        found = (_read(one / _META) for one in self._directory.glob("*-*"))
        return sorted((one for one in found if one), key=lambda one: -one["number"])

    def archive(self, number: int) -> Archive:
        """The archive of deployment ``number``. Raises ApplicationError if this node does not have
        it."""
        for meta in self.history():
            if meta["number"] == number:
                place = self._directory / f"{number}-{meta['id'][:16]}" / _ZIP
                with disk(place):
                    return Archive.read(place.read_bytes())
        raise ApplicationError(
            f"this node does not have deployment {number}; 'ha-engine app history' lists those "
            "that it has"
        )

    def _add(self, place: str, deployed: Deployed) -> None:
        """Make the directory of a deployment, which a rename makes visible as a whole."""
        draft = self._directory / f".{place}"
        shutil.rmtree(draft, ignore_errors=True)
        archive = Archive.from_text(deployed.archive)
        (draft / _FILES).mkdir(parents=True)
        archive.unpack(draft / _FILES)
        (draft / _ZIP).write_bytes(archive.content)
        if (shadow := deployed.shadow) is not None:
            beside = Archive.from_text(shadow.archive)
            (draft / _SHADOW).mkdir()
            beside.unpack(draft / _SHADOW)
            (draft / _SHADOW_ZIP).write_bytes(beside.content)
        (draft / _META).write_text(json.dumps(described(deployed)), encoding="utf-8")
        # A loss of power must not leave the name of the directory without its files.
        OS_FILES.sync(draft)
        draft.rename(self._directory / place)
        OS_FILES.fsync_directory(self._directory)

    def _remove_old(self, current: str) -> None:
        for meta in self.history()[KEPT:]:
            place = f"{meta['number']}-{meta['id'][:16]}"
            if place != current:
                shutil.rmtree(self._directory / place, ignore_errors=True)


def described(deployed: Deployed) -> dict[str, Any]:
    """The fields of a deployment but its archives, which may have megabytes."""
    tree = {**deployed.tree, "runs": deployed.runs}
    for one in (tree, tree.get("shadow"), tree.get("promoted")):
        if one is not None:
            del one["archive"]
    return tree


def _whole(place: Path) -> dict[str, Any] | None:
    """The fields of a deployment, or None if a file of its directory is not what it was."""
    meta = _read(place / _META)
    if meta is None or _id_below(place / _FILES) != meta.get("id"):
        return None
    if "shadow" in meta and _id_below(place / _SHADOW) != meta["shadow"]["id"]:
        return None
    return meta


def _id_below(files: Path) -> str:
    return id_of(
        {
            path.relative_to(files).as_posix(): path.read_bytes()
            for path in files.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    )


def shadow_path(application: Path) -> Path:
    """The directory of a shadow's application beside that of the deployed one."""
    return application.parent / _SHADOW


def _read(path: Path) -> dict[str, Any] | None:
    """A file of this module, or None if it is missing or was not completely written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
