"""An archive of Spark's loaded classes (Java's AppCDS), which halves the time of Spark's start.

The first start on an installation lists the classes that the JVM loads. Some time after a batch
ended, a separate Java process writes the listed classes into an archive. The separate process gets
CPU time only when no other process needs it. Each later start maps the archive into memory.

No fault of the archive may make a start fail, so errors of the archive are only logged. An archive
that does not fit, or that may have made starts fail, is deleted and written again.
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
"""The wait after the first batch, in which Spark compiles and a restarted node catches up."""
FREE_BYTES_MIN = 2 << 30
"""No archive is written with less free space. An archive has some 190 MB."""
TRIALS_MAX = 2
_MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"
_SHAPING = ("-Xmx", "-XX:+Use", "-XX:-Use", "--add-modules")
"""Options that must be the same when an archive is written and when it is mapped."""
_STEP_BACK = (
    "import os, sys; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    "open('/proc/self/oom_score_adj', 'w').write('1000'); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Writing an archive takes a gigabyte of memory. If memory runs out, the kernel kills the writer
first."""


class ClassArchive:
    """The archive of classes in ``directory``, which one process uses at a time.

    ``installation`` identifies Java, Spark's jars and the settings; an archive of another
    installation is deleted. Call ``java_options`` once, before the JVM starts.
    """

    def __init__(self, directory: Path, installation: str) -> None:
        self._directory = directory
        self._archive = directory / f"{installation}.jsa"
        self._list = directory / f"{installation}.classes"
        self._trial = directory / f"{installation}.trial"
        self._listing = False
        self._writing = threading.Lock()

    def java_options(self) -> tuple[str, ...]:
        """JVM options that map the archive, or that list the loaded classes for a new archive."""
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
        # The JVM verifies the archive, because an incomplete file must not crash the JVM later.
        return (f"-XX:SharedArchiveFile={self._archive}", "-XX:+VerifySharedSpaces")

    def _throw_away_what_does_not_fit(self) -> None:
        """Delete archives of other installations, and an archive with which two starts in a row
        failed.

        Each start adds a byte to the trial file, which ``spark_started`` deletes. A single failed
        start may have been killed, but after two the archive may be the cause.
        """
        suspect = self._trial.exists() and self._trial.stat().st_size >= TRIALS_MAX
        kept = () if suspect else (self._archive, self._trial)
        for path in self._directory.iterdir():
            if path not in kept:
                path.unlink()

    def spark_started(self) -> None:
        """Delete the trial file, which counts starts that have not succeeded yet.

        If the trial file remains, a later start may delete the archive.
        """
        with contextlib.suppress(OSError):
            self._trial.unlink(missing_ok=True)

    def batch_ended(self, jvm: int, after_seconds: float = WRITE_AFTER_SECONDS) -> None:
        """Write the archive some time after the first call, if this start listed the loaded
        classes.

        Call ``batch_ended`` at the end of every batch of the JVM with pid ``jvm``.
        """
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
        """Write the archive; ``jvm`` is the command line of the JVM that listed the loaded classes.

        The call blocks for one minute or several. Raises OSError, SubprocessError.
        """
        if shutil.disk_usage(self._directory).free < FREE_BYTES_MIN:
            log.info("Spark's class archive is not written: the disk has too little free space")
            return
        listed, draft = self._list.with_suffix(".listed"), self._archive.with_suffix(".draft")
        # The JVM still writes to the list of classes, whose last line may be incomplete.
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
        log.info("Spark's class archive written; the next start is faster", bytes=size)


def _shape(jvm: Sequence[str]) -> list[str]:
    """The JVM options that an archive depends on: the class path and the layout of the memory."""
    options = list(jvm[1 : jvm.index(_MAIN_CLASS) if _MAIN_CLASS in jvm else len(jvm)])
    path = options.index("-cp")
    return [*options[path : path + 2], *(one for one in options if one.startswith(_SHAPING))]


class NoArchive:
    """Replaces ``ClassArchive`` on a node whose config turns the archive off."""

    def java_options(self) -> tuple[str, ...]:
        return ()

    def spark_started(self) -> None:
        pass

    def batch_ended(self, jvm: int) -> None:
        pass


AnyArchive: TypeAlias = ClassArchive | NoArchive


def installation(java: Path, jars: Iterable[Path], settings: Iterable[str]) -> str:
    """A digest of the Java program, jars and settings that an archive depends on.

    Each file counts by its name, size and time of change.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in (java.resolve(), *sorted(jars)):
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for setting in sorted(settings):
        digest.update(f"{setting}\n".encode())
    return digest.hexdigest()
