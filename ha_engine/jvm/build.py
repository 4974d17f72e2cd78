"""Compile the Java classes of this package, with Spark's jars, to one jar.

    python -m ha_engine.jvm.build

The command writes the jar that a wheel contains. The same sources and the same ``javac`` give the
same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from ha_engine.jvm import JAR

SOURCES = Path(__file__).parent
RELEASE = 17
"""The oldest Java that runs Spark 4."""
_MANIFEST = "META-INF/MANIFEST.MF"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(jar: Path) -> None:
    """Write ``jar``, or replace it. Raises FileNotFoundError without ``javac``, and
    CalledProcessError if it refuses the sources."""
    with tempfile.TemporaryDirectory(prefix=".javac-", dir=jar.parent) as directory:
        classes, packed = Path(directory, "classes"), Path(directory, jar.name)
        classes.mkdir()
        sources = sorted(map(str, SOURCES.rglob("*.java")))
        libraries = str(Path(_find_spark_home(), "jars", "*"))
        options = ["--release", str(RELEASE), "-Xlint:all,-path", "-Werror", "-proc:none"]
        where = ["-classpath", libraries, "-d", str(classes)]
        subprocess.run([_javac(), *options, *where, *sources], check=True)
        _pack(classes, packed)
        packed.replace(jar)


def _javac() -> str:
    home = os.environ.get("JAVA_HOME")
    javac = str(Path(home, "bin", "javac")) if home else shutil.which("javac")
    if javac is None or not os.access(javac, os.X_OK):
        raise FileNotFoundError("there is no javac; install a JDK, and set JAVA_HOME or PATH")
    return javac


def _pack(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, _MANIFEST, b"Manifest-Version: 1.0\r\n\r\n")
        for file in sorted(classes.rglob("*.class")):
            _add(archive, file.relative_to(classes).as_posix(), file.read_bytes())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file with a constant time and mode, so that equal files give equal archives."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


if __name__ == "__main__":
    build(JAR)
