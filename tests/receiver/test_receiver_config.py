"""The answers of ``ha-engine receive --check`` about the files of a receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ha_engine.cli.root import program
from ha_engine.config.load import load_tree, settings
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.errors import ApplicationError, ConfigError
from ha_engine.receiver import process
from tests.connectors.receivers import application

BROKERS = ["127.0.0.1:9"]


def check(directory: Path, config: dict[str, Any], text: str = "", **environ: str) -> list[str]:
    (directory / "application.yaml").write_text(text or application(BROKERS, "orders"))
    file = directory / "receiver.yaml"
    file.write_text(yaml.safe_dump(config))
    return process.check(file, environ)


def test_the_streams_with_a_topic_are_named(tmp_path: Path) -> None:
    assert check(tmp_path, {}) == ["orders"]
    words = ["receive", "--check", "--config", str(tmp_path / "receiver.yaml")]
    assert CliRunner().invoke(program(), words).output == "OK: takes events of orders\n"


def test_every_problem_is_reported_with_its_key(tmp_path: Path) -> None:
    wrong = {
        "lease": {"ttl": "5s"},
        "http": {"listen": "10.0.0.1:8080", "max_boby": "1MiB"},
        "receive": {"max_pending": "many"},
    }
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, wrong, HA_ENGINE_JOURNAL_MIN_FREE="1GiB")
    problems = str(caught.value).splitlines()
    for word in (
        "lease: is not a known key",
        "http.max_boby: is not a known key; did you mean http.max_body?",
        "receive.max_pending: ",
        "HA_ENGINE_JOURNAL_MIN_FREE: no setting has this environment variable",
    ):
        assert any(problem.startswith(word) for problem in problems), problems
    assert not any("config schema" in problem for problem in problems)


def test_an_open_address_needs_tokens_and_encryption(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^http: listen is 10\.0\.0\.1:8080, which other hosts"):
        check(tmp_path, {"http": {"listen": "10.0.0.1:8080"}})
    tls = {"certificate": "missing.pem", "key": "missing.key"}
    listen = {"http": {"listen": "10.0.0.1:8080", "tls": tls}}
    with pytest.raises(ConfigError, match=r"^access\.admin and access\.ingest has no token"):
        check(tmp_path, listen)
    tokens = {"access": {"admin": {"a": "0" * 64}, "ingest": {"b": "1" * 64}}}
    with pytest.raises(ConfigError, match=r"^http\.tls: cannot use certificate .*missing\.pem"):
        check(tmp_path, listen | tokens)


def test_limits_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^http\.max_body \(16MiB\) is more than receive\.max_p"):
        check(tmp_path, {"receive": {"max_pending": "1MiB"}})


def test_an_application_without_a_topic_is_refused(tmp_path: Path) -> None:
    tree = yaml.safe_load(application(BROKERS, "orders"))
    del tree["streams"]["orders"]["log"]
    with pytest.raises(ConfigError, match="no stream of application shop has a topic as its log"):
        check(tmp_path, {}, yaml.safe_dump(tree))


def test_options_of_the_log_are_checked(tmp_path: Path) -> None:
    unknown = application(BROKERS, "orders", partition_by=["place"])
    with pytest.raises(ApplicationError, match=r"log\.partition_by: the stream has no column 'pl"):
        check(tmp_path, {}, unknown)
    for empty in ([], "name"):
        with pytest.raises(ApplicationError, match=r"streams\.orders\.log\.partition_by"):
            check(tmp_path, {}, application(BROKERS, "orders", partition_by=empty))
    missing = application(BROKERS, "orders", tls={"ca_file": "missing.pem"})
    with pytest.raises(ConfigError, match=r"^stream orders: log: .* tls\.|^stream orders: log: "):
        check(tmp_path, {}, missing)


def test_each_key_says_what_it_is() -> None:
    assert [one.key for one in settings(ReceiverConfig) if not one.description] == []


def test_variables_set_keys(tmp_path: Path) -> None:
    environ = {"HA_ENGINE_RECEIVE_MAX_REQUEST_ROWS": "7", "HA_ENGINE_CONFIG": "x"}
    assert load_tree(ReceiverConfig, None, environ).config.receive.max_request_rows == 7
