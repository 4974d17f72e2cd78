"""An archive of Spark's loaded classes (Java's AppCDS), from which its JVM starts in half the time.

The first start on an installation lists the classes that it loads. Some time after a batch ended,
a Java of its own, which gets CPU only when nobody else wants it, writes them into an archive; each
later start maps that. Nothing here may fail a start: an archive that does not fit, or that a JVM
died with, is thrown away and written anew, and what goes wrong is a line in the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import psutil
import structlog

log = structlog.get_logger(__name__)

WRITE_AFTER_SECONDS = 60.0
"""From the end of the first batch: until then Spark compiles, a node that returned catches up."""
FREE_BYTES_MIN = 2 << 30
"""An archive has some 190 MB; a disk that is nearly full has better uses for them."""
TRIALS_MAX = 2
_MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"
_SHAPING = ("-Xmx", "-XX:+Use", "-XX:-Use", "--add-modules")
"""What an archive must have been written with to be mapped later."""
_STEP_BACK = (
    "import os, sys; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    "open('/proc/self/oom_score_adj', 'w').write('1000'); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""It takes a gigabyte: where that is too much, it is what has to go."""


class ClassArchive:
    """The archive in ``directory``, of one process at a time.

    ``installation`` tells Java, Spark's jars and the settings apart: the archive of another one is
    deleted. ``java_options`` is asked once, before the JVM starts.
    """

    def __init__(self, directory: Path, installation: str) -> None:
        self._directory = directory
        self._archive = directory / f"{installation}.jsa"
        self._list = directory / f"{installation}.classes"
        self._trial = directory / f"{installation}.trial"
        self._listing = False
        self._writing = threading.Lock()

    def java_options(self) -> tuple[str, ...]:
        """Options that map the archive, or that list what one is to hold."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._throw_away_what_does_not_fit()
            self._listing = not self._archive.exists()
            if self._listing:
                return (f"-XX:DumpLoadedClassList={self._list}",)
            with self._trial.open("ab") as trial:
                trial.write(b".")
        except OSError as error:
            log.warning("Spark starts without its class archive", reason=str(error))
            return ()
        # A half-written file, or one of a disk that forgot, must not become a crash later.
        return (f"-XX:SharedArchiveFile={self._archive}", "-XX:+VerifySharedSpaces")

    def _throw_away_what_does_not_fit(self) -> None:
        """Each start leaves a mark until it has come up. One may have been killed; two in a row
        may have died of the archive."""
        suspect = self._trial.exists() and self._trial.stat().st_size >= TRIALS_MAX
        kept = () if suspect else (self._archive, self._trial)
        for path in self._directory.iterdir():
            if path not in kept:
                path.unlink()

    def spark_started(self) -> None:
        """A trial that cannot be ended costs the next start its archive."""
        with contextlib.suppress(OSError):
            self._trial.unlink(missing_ok=True)

    def batch_ended(self, jvm: int, after_seconds: float = WRITE_AFTER_SECONDS) -> None:
        """Called at the end of every batch of the JVM with that pid; the first one counts."""
        if self._listing and self._writing.acquire(blocking=False):
            timer = threading.Timer(after_seconds, self._write, (jvm,))
            timer.daemon = True
            timer.start()

    def _write(self, jvm: int) -> None:
        try:
            self.write(psutil.Process(jvm).cmdline())
        except (OSError, psutil.Error, subprocess.SubprocessError) as error:
            log.warning("Spark's class archive is not written", reason=str(error))

    def write(self, jvm: Sequence[str]) -> None:
        """Write the archive; ``jvm`` is the command line of the JVM that listed its classes.

        Blocks for a minute or several. Raises OSError, SubprocessError.
        """
        if shutil.disk_usage(self._directory).free < FREE_BYTES_MIN:
            log.info("no class archive is written: the disk has little room")
            return
        listed, draft = self._list.with_suffix(".listed"), self._archive.with_suffix(".draft")
        # The JVM goes on to write into its own, and may be in the middle of a line.
        listed.write_bytes(self._list.read_bytes().rpartition(b"\n")[0] + b"\n")
        dump = (
            "-Xshare:dump",
            f"-XX:SharedClassListFile={listed}",
            f"-XX:SharedArchiveFile={draft}",
        )
        subprocess.run(
            [sys.executable, "-c", _STEP_BACK, jvm[0], *dump, *_shape(jvm)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        size = draft.stat().st_size
        draft.rename(self._archive)
        log.info("class archive written; the next start of Spark is faster", bytes=size)


def _shape(jvm: Sequence[str]) -> list[str]:
    """The options of a JVM that its archive depends on: the class path, the memory's layout."""
    options = list(jvm[1 : jvm.index(_MAIN_CLASS) if _MAIN_CLASS in jvm else len(jvm)])
    path = options.index("-cp")
    return [*options[path : path + 2], *(one for one in options if one.startswith(_SHAPING))]


class NoArchive:
    """In the place of one where nobody wants it."""

    def java_options(self) -> tuple[str, ...]:
        return ()

    def spark_started(self) -> None:
        pass

    def batch_ended(self, jvm: int) -> None:
        pass


AnyArchive: TypeAlias = ClassArchive | NoArchive


def installation(java: Path, jars: Iterable[Path], settings: Iterable[str]) -> str:
    """A name for what an archive depends on. Files count by name, size and time of change."""
    seen = hashlib.blake2b(digest_size=8)
    for path in (java.resolve(), *sorted(jars)):
        stat = path.stat()
        seen.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for setting in sorted(settings):
        seen.update(f"{setting}\n".encode())
    return seen.hexdigest()
