"""File systems of their own for a node or a database, which can fill, fail and lose power."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

from ha_engine.query.checkpoints import CLEAN_FILE, STAMP_FILE
from ha_engine.system.file_lock import NODE_LOCK
from ha_engine.system.fsync import boot_id

DISK_BYTES = 512 << 20
PART_BYTES = 4 << 20
MIN_FREE_BYTES = 64 << 20
"""The node's ``journal.min_free``."""
_SECTOR_BYTES = 1 << 20
_OF_A_BOOT = (STAMP_FILE, CLEAN_FILE, NODE_LOCK)
"""The names of the files in which a node notes the boot of its host."""


class Volume:
    """A file system that is mounted at ``mount_point``."""

    def __init__(self, mount_point: Path) -> None:
        self.mount_point = mount_point
        self._ballast = mount_point / "ballast"

    def fill(self, free_bytes: int) -> None:
        """Leave at most so many bytes free."""
        wanted = shutil.disk_usage(self.mount_point).free - free_bytes
        with self._ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(wanted, 1))
            if free_bytes == 0:
                _write_until_full(file.fileno())

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        _run("umount", str(self.mount_point))


class Part(Volume):
    """A directory that is small: in memory, since no row lets it lose power."""

    def create(self) -> None:
        self.mount_point.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={PART_BYTES}", "tmpfs", str(self.mount_point))


class Disk(Volume):
    """An ext4 below ``directory``, which takes only the space that it needs."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "disk")
        self._image = directory / "disk.img"

    def create(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))
        self.mount_point.mkdir()
        self._mount()

    def copy(self) -> None:
        """Copy what has reached the disk by now."""
        _run("cp", "--sparse=always", str(self._image), str(self._copied))

    def lose_power(self) -> None:
        """Continue with the copy, as after a boot. No process may use the disk."""
        self.unmount()
        self._copied.replace(self._image)
        self._mount()
        self._boot_again()

    def become_read_only(self) -> None:
        """Let the file system find an error, after which the kernel permits no write."""
        device = Path(_run("findmnt", "-n", "-o", "SOURCE", str(self.mount_point)).strip())
        (Path("/sys/fs/ext4") / device.name / "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Continue with a copy whose errors are corrected. No process may use the disk.

        The other hosts have mounted the file system too, so the damaged one stays as it is.
        """
        self.copy()
        # It exits with 1 once it has corrected the error.
        subprocess.run(["e2fsck", "-fy", str(self._copied)], capture_output=True, check=False)
        self.lose_power()

    def _boot_again(self) -> None:
        """Let the files be of an earlier boot, since the kernel of all hosts does not boot."""
        present, earlier = boot_id().encode(), str(uuid.uuid4()).encode()
        for name in _OF_A_BOOT:
            for path in self.mount_point.rglob(name):
                path.write_bytes(path.read_bytes().replace(present, earlier))

    @property
    def _copied(self) -> Path:
        return self._image.with_suffix(".copy")

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.mount_point))


def _write_until_full(descriptor: int) -> None:
    os.lseek(descriptor, 0, os.SEEK_END)
    try:
        while True:
            os.write(descriptor, bytes(_SECTOR_BYTES))
    except OSError:
        return


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout
