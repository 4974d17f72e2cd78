"""The class archive, tested with a Java program smaller than Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pyspark
import pytest

from ha_engine.query.class_archive import ClassArchive, installation
from ha_engine.query.session import find_java
from tests.waiting import wait_until

JAR = next(Path(pyspark.__file__).parent.glob("jars/spark-launcher_*.jar"))
ONE_OF_THE_JAR = "org.apache.spark.launcher.Main"

COMPLAINT = "missing class name"


def command_line(*options: str) -> list[str]:
    """Return the command of a program that ends with an error about its arguments."""
    return [find_java(), "-cp", str(JAR), "-Xmx64m", *options, ONE_OF_THE_JAR]


def run(archive: ClassArchive, *options: str) -> subprocess.CompletedProcess[str]:
    line = command_line(*archive.java_options(), *options)
    return subprocess.run(line, capture_output=True, text=True, check=False)


def written(directory: Path) -> ClassArchive:
    """Return an archive after the first start."""
    archive = ClassArchive(directory, "here")
    run(archive)
    archive.spark_started()
    archive.write(command_line())
    return archive


def test_second_start_loads_the_classes_from_the_archive(tmp_path: Path) -> None:
    written(tmp_path)
    told = run(ClassArchive(tmp_path, "here"), "-Xlog:class+load", "-Xshare:on").stdout
    assert f"{ONE_OF_THE_JAR} source: shared objects file" in told


def test_damaged_archive_does_not_prevent_a_start_of_java(tmp_path: Path) -> None:
    sane = run(written(tmp_path / "sane"))
    assert COMPLAINT in sane.stderr
    for number, damage in enumerate((b"", b"not an archive", None)):
        archive = written(tmp_path / str(number))
        file = tmp_path / str(number) / "here.jsa"
        file.chmod(0o600)
        content = file.read_bytes()
        middle = len(content) // 2
        torn = content[:middle] + bytes(4096) + content[middle + 4096 :]
        file.write_bytes(torn if damage is None else damage)
        assert COMPLAINT in run(archive).stderr


def test_archive_is_not_used_after_two_failed_starts(tmp_path: Path) -> None:
    archive = written(tmp_path)
    for _ in range(2):
        run(archive)  # no report of a successful start follows
    assert not any("SharedArchiveFile" in option for option in archive.java_options())
    assert not list(tmp_path.glob("*.jsa"))


def test_archive_survives_one_killed_start(tmp_path: Path) -> None:
    archive = written(tmp_path)
    for _ in range(3):
        run(archive)  # the start counts as killed
        run(archive)
        archive.spark_started()
    assert any("SharedArchiveFile" in option for option in archive.java_options())


def test_the_archive_of_another_installation_is_deleted(tmp_path: Path) -> None:
    written(tmp_path)
    ClassArchive(tmp_path, "elsewhere").java_options()
    assert not list(tmp_path.glob("*.jsa"))


def test_newer_jar_or_another_setting_is_another_installation(tmp_path: Path) -> None:
    jar, java = tmp_path / "one.jar", Path(find_java())
    jar.write_bytes(b"old")
    names = [installation(java, [jar], ["heap=1g"]), installation(java, [jar], ["heap=2g"])]
    jar.write_bytes(b"newer")
    names.append(installation(java, [jar], ["heap=1g"]))
    assert len(set(names)) == 3
    assert installation(java, [jar], ["heap=1g"]) == names[2]


def test_spark_starts_without_an_archive_where_none_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "classes").write_text("in the way")
    archive = ClassArchive(tmp_path / "classes", "here")
    assert archive.java_options() == ()
    archive.spark_started()
    archive.batch_ended(jvm=1)


def test_no_archive_is_written_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.query.class_archive.FREE_BYTES_MIN", 1 << 60)
    written(tmp_path)
    assert not list(tmp_path.glob("*.jsa"))


def test_the_archive_is_written_once_after_the_first_batch(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, "here")
    run(archive)
    pause = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+PauseAtStartup"]
    pause.append(f"-XX:PauseAtStartupFile={tmp_path / 'paused'}")
    with psutil.Popen(command_line(*pause), stderr=subprocess.DEVNULL) as jvm:
        for _ in range(3):
            archive.batch_ended(jvm.pid, after_seconds=0.0)
        wait_until(lambda: list(tmp_path.glob("*.jsa")), within=120)
        jvm.kill()
    names = sorted(path.suffix for path in tmp_path.glob("here.*"))
    assert names == [".classes", ".jsa", ".listed"]
