"""``ha-engine cluster check`` as an operator uses it, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.cli import main
from tests.e2e.node_under_test import free_port
from tests.e2e.without_spark import APPLICATION, no_spark

pytestmark = pytest.mark.usefixtures("logging_as_before")

SECRET = "a-secret-of-the-cluster"
Check = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Check:
    """Return the exit code and the findings for this section ``execution`` and application."""
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))

    def run(
        application: str = APPLICATION, **execution: Any
    ) -> tuple[int, dict[str, dict[str, str]]]:
        (tmp_path / "application.yaml").write_text(application)
        file = tmp_path / "engine.yaml"
        file.write_text(yaml.safe_dump({"application": "application.yaml", "execution": execution}))
        with pytest.raises(SystemExit) as ended:
            main(["cluster", "check", "-c", str(file), "--json"])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err
        assert isinstance(ended.value.code, int)
        return ended.value.code, {one["check"]: one for one in json.loads(said.out)}

    return run


def cluster(tmp_path: Path, **given: Any) -> dict[str, Any]:
    return {
        "master": f"spark://127.0.0.1:{free_port()}",
        "checkpoint": str(tmp_path),
        "listen": f"127.0.0.1:{free_port()}",
        "secret": SECRET,
        **given,
    }


def test_a_config_without_a_cluster_names_the_section(check: Check) -> None:
    code, found = check()
    assert code == 1
    assert list(found) == ["config", "application", "cluster"]
    assert found["cluster"]["state"] == "failed"
    assert "execution.master" in found["cluster"]["remedy"]


def test_an_incomplete_section_is_explained(check: Check, tmp_path: Path) -> None:
    code, found = check(**cluster(tmp_path, secret="short"))
    assert code == 1
    assert "secret has fewer than 16 characters" in found["config"]["text"]


def test_a_master_that_does_not_answer_fails_without_a_start_of_spark(
    check: Check, tmp_path: Path
) -> None:
    code, found = check(**cluster(tmp_path))
    assert code == 1
    assert found["masters"]["text"].startswith("no master answers: 127.0.0.1:")
    assert found["accepted"]["state"] == "skipped"
    assert found["executors/software"]["state"] == "skipped"
    assert found["checkpoint"]["state"] == "ok"
    assert not list(tmp_path.glob(".cluster-check-*"))


def test_a_directory_that_is_missing_fails(check: Check, tmp_path: Path) -> None:
    _, found = check(**cluster(tmp_path, checkpoint=str(tmp_path / "nowhere")))
    assert found["checkpoint"]["text"] == f"{tmp_path / 'nowhere'} is no directory on this host"


def test_a_stream_in_kafka_is_checked_without_a_cluster(check: Check) -> None:
    tree = yaml.safe_load(APPLICATION)
    broker = f"127.0.0.1:{free_port()}"
    log = {"type": "kafka", "brokers": [broker], "topic": "events", "timeout": "2s"}
    tree["streams"]["events"]["log"] = log
    code, found = check(yaml.safe_dump(tree))
    assert code == 1
    assert found["cluster"]["state"] == "skipped"
    assert found["kafka/events"]["state"] == "failed"
    assert broker in found["kafka/events"]["text"]
    assert found["kafka/jars"]["text"].startswith("query.spark names no spark-sql-kafka")
