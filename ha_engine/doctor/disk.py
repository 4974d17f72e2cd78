"""Check the data directory of a node, and the disk below it."""

from __future__ import annotations

import os
import pwd
import stat
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from rich.filesize import decimal

from ha_engine.config import Config
from ha_engine.deploy import application_of
from ha_engine.doctor.finding import Finding, failed, ok, skipped, warning

FSYNC_COUNT = 50
FSYNC_SECONDS_MAX = 3.0
FSYNC_BYTES = 4096
SLOW_FSYNC_SECONDS = 0.02
"""Every ack waits for one fsync on each node, so a slower disk makes slow acks."""
_VOLATILE = {"tmpfs", "ramfs", "overlay"}
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "afs", "virtiofs")


def data_dir(home: Path) -> Finding:
    """Whether this user can use the data directory, or create it."""
    me = _user(os.geteuid())
    if not home.exists():
        parent = _existing(home)
        if os.access(parent, os.W_OK | os.X_OK):
            return ok(f"{home} does not exist yet; the node creates it in {parent}")
        return failed(
            f"{home} does not exist, and user {me} may not create it in {parent}",
            f"create it: install -d -m 0700 -o {me} {home}",
        )
    if not home.is_dir():
        return failed(f"{home} is not a directory", "correct node.data_dir, or remove the file")
    owner = _user(home.stat().st_uid)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return failed(
            f"{home} belongs to user {owner}, and user {me} may not read and write it",
            f"run this command as the node's user: sudo -u {owner} ha-engine doctor",
        )
    if owner != me:
        return warning(
            f"{home} belongs to user {owner}, but this command runs as user {me}",
            f"run this command as the node's user: sudo -u {owner} ha-engine doctor",
        )
    return ok(f"{home} belongs to user {owner}")


def mode(home: Path) -> Finding:
    """Whether other users can read or change the data directory."""
    if not home.exists():
        return ok(f"the node creates {home} with mode 0700")
    found = stat.S_IMODE(home.stat().st_mode)
    text, remedy = f"{home} has mode {found:04o}", f"chmod 0700 {home}"
    if found & 0o022:
        return failed(f"{text}, so other users may change the journal", remedy)
    if found & 0o055:
        return warning(f"{text}, so other users may read events", remedy)
    return ok(text)


def space(config: Config) -> Finding:
    """Compare the free space with ``journal.min_free``, and with the growth that the config
    permits."""
    place, needed = _existing(config.node.data_dir), config.journal.min_free
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        return failed(
            f"the disk of {place} has {decimal(free)} free, less than journal.min_free "
            f"({decimal(needed)}), so the node refuses events",
            "free space on the disk, or lower journal.min_free",
        )
    growth = _growth(config)
    if free < needed + growth:
        return warning(
            f"the disk of {place} has {decimal(free)} free; journal and outbox may grow by "
            f"{decimal(growth)}, and journal.min_free ({decimal(needed)}) must remain free",
            "free space on the disk, or lower journal.max_size or outbox.max_bytes",
        )
    return ok(
        f"the disk of {place} has {decimal(free)} free, of which journal, outbox and "
        f"journal.min_free need {decimal(needed + growth)}"
    )


def file_system(home: Path) -> Finding:
    """Whether the file system of the data directory keeps files over a loss of power."""
    place = _existing(home).resolve()
    mounts = {Path(one.mountpoint): one for one in psutil.disk_partitions(all=True)}
    mount = next((mounts[path] for path in (place, *place.parents) if path in mounts), None)
    if mount is None:
        return skipped(f"no mount point of {place} is visible")
    where = f"{place} is on {mount.fstype} (mounted at {mount.mountpoint})"
    if "ro" in mount.opts.split(","):
        return failed(f"{where}, which is mounted read-only", "mount the disk for writing")
    if mount.fstype in _VOLATILE:
        return warning(
            f"{where}, which loses its files with the host or the container",
            "put node.data_dir on a disk, or for a container on a volume",
        )
    if mount.fstype.startswith(_REMOTE):
        return warning(
            f"{where}, a network file system, which may not honour fsync and locks",
            "put node.data_dir on a local disk",
        )
    return ok(where)


def fsync(home: Path, sync_timeout: float) -> Finding:
    """Measure how long the disk takes to make 4 KiB durable."""
    place = _existing(home)
    if not os.access(place, os.W_OK | os.X_OK):
        return skipped(f"this user may not write to {place}")
    seconds = _measured(place)
    median, worst = statistics.median(seconds), max(seconds)
    text = (
        f"an fsync of 4 KiB in {place} takes {1000 * median:.1f} ms "
        f"(median of {len(seconds)}), at most {1000 * worst:.1f} ms"
    )
    if worst >= sync_timeout:
        return failed(
            f"{text}, longer than event_sync.sync_timeout, so the active drops this node",
            "use a faster disk, or find what else uses this one",
        )
    if median >= SLOW_FSYNC_SECONDS:
        return warning(f"{text}, and every ack waits so long", "use a disk with a faster fsync")
    return ok(text)


def _measured(place: Path) -> list[float]:
    """The seconds of each fsync in a file without a name, which the kernel deletes by itself."""
    seconds: list[float] = []
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        while len(seconds) < FSYNC_COUNT and sum(seconds) < FSYNC_SECONDS_MAX:
            file.write(bytes(FSYNC_BYTES))
            began = time.monotonic()
            os.fdatasync(file.fileno())
            seconds.append(time.monotonic() - began)
    return seconds


def _growth(config: Config) -> int:
    """The number of bytes by which journal and outbox may still grow."""
    home = config.node.data_dir
    outbox = config.outbox.max_bytes * len(application_of(config).queries)
    grown = {home / "outbox": outbox}
    if config.journal.max_size:
        grown[home / "journal"] = config.journal.max_size
    return sum(max(0, limit - _size(path)) for path, limit in grown.items())


def _size(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    except OSError:  # a running node deletes files
        return 0


def _existing(path: Path) -> Path:
    """``path``, or the nearest directory above it that exists."""
    return next(one for one in (path, *path.absolute().parents) if one.exists())


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
