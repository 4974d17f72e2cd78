"""The disk of a node as a file system of its own in a file, which can fill and lose power."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

DISK_BYTES = 512 << 20
MIN_FREE_BYTES = 64 << 20
"""The node's ``journal.min_free``."""
_SECTOR_BYTES = 1 << 20


class Disk:
    """An ext4 below ``directory``, mounted at ``mount_point``, which takes only what it needs."""

    def __init__(self, directory: Path) -> None:
        self._image, self.mount_point = directory / "disk.img", directory / "disk"
        self._ballast = self.mount_point / "ballast"

    def create(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))
        self.mount_point.mkdir()
        self._mount()

    def fill(self, free_bytes: int) -> None:
        """Leave at most so many bytes free."""
        wanted = shutil.disk_usage(self.mount_point).free - free_bytes
        with self._ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(wanted, 1))
            if free_bytes == 0:
                _write_until_full(file.fileno())

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def copy(self) -> None:
        """Copy what has reached the disk by now."""
        _run("cp", "--sparse=always", str(self._image), str(self._copied))

    def lose_power(self) -> None:
        """Continue with the copy. No process may use the disk."""
        self.unmount()
        self._copied.replace(self._image)
        self._mount()

    def unmount(self) -> None:
        _run("umount", str(self.mount_point))

    @property
    def _copied(self) -> Path:
        return self._image.with_suffix(".copy")

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount_point))


def _write_until_full(descriptor: int) -> None:
    os.lseek(descriptor, 0, os.SEEK_END)
    try:
        while True:
            os.write(descriptor, bytes(_SECTOR_BYTES))
    except OSError:
        return


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
