"""``ha-engine config check`` reads the files that a node reads at its start, and starts nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.cli import main
from ha_engine.errors import HadoopConfigMissing
from ha_engine.node.startup import read_files
from tests.docs.pages import ROOT
from tests.programs import needs
from tests.sync.authority import Authority

APPLICATIONS = ROOT / "conf" / "applications"
DATABASE = {"url": "postgresql://nobody@127.0.0.1:1/nowhere"}

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return exit code, stdout and stderr for these sections beside a valid application."""
    for file in filter(Path.is_file, APPLICATIONS.iterdir()):
        shutil.copy(file, tmp_path)

    def run(**sections: object) -> tuple[int, str, str]:
        file = tmp_path / "engine.yaml"
        file.write_text(yaml.safe_dump({"application": "flights.yaml", **sections}))
        with pytest.raises(SystemExit) as ended:
            main(["config", "check", "-c", str(file)])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return authority.files("node-a", san="DNS:node-a,IP:127.0.0.1")


def pair_of(files: dict[str, str]) -> dict[str, str]:
    return {name: files[name] for name in ("certificate", "key")}


def cluster(files: dict[str, str]) -> dict[str, Any]:
    return {
        "master": "spark://127.0.0.1:7077",
        "checkpoint": "checkpoints",
        "secret": "a-secret-of-the-cluster",
        "tls": files,
    }


@pytest.mark.parametrize("name", ["flights.yaml", "function.yaml"])
@pytest.mark.parametrize("database", [{}, DATABASE])
def test_config_check_lists_the_files_read_and_calls_no_database(
    check: Check, tmp_path: Path, name: str, database: dict[str, str]
) -> None:
    code, said, _ = check(application=name, database=database)
    assert (code, said) == (0, f"OK: config, application {tmp_path / name}\n")


@needs("openssl")
def test_config_check_reads_every_certificate(check: Check, files: dict[str, str]) -> None:
    code, said, _ = check(
        event_sync={"tls": files},
        http={"tls": pair_of(files)},
        ingest={"tls": pair_of(files)},
        execution=cluster(files),
    )
    assert code == 0
    assert said.endswith(", event_sync.tls, http.tls, ingest.tls, execution.tls\n")


@needs("openssl")
def test_certificate_for_executors_needs_its_authority(check: Check, files: dict[str, str]) -> None:
    code, _, problem = check(execution=cluster(files | {"ca": "absent.ca"}))
    assert code == 2
    assert "execution.tls.ca: " in problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read: No such file or directory; check the path"),
        ("name: x\nstreems: {}\n", "streems is not a known key; did you mean 'streams'?"),
        ("name: [", "is not YAML"),
    ],
)
def test_an_application_that_a_node_would_refuse_is_refused(
    check: Check, tmp_path: Path, text: str | None, sentence: str
) -> None:
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_text(text)
    code, said, problem = check(application="own.yaml")
    assert (code, said) == (2, "")
    assert problem.startswith(f"ha-engine: {file}: ")
    assert sentence in problem
    assert problem.count("\n") == 1


def test_config_check_reads_the_module_of_a_function(check: Check, tmp_path: Path) -> None:
    text = (tmp_path / "function.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("punctuality:", "in_no_file:"))
    code, _, problem = check(application="own.yaml")
    assert code == 2
    assert "there is no module 'in_no_file'" in problem


def test_config_check_reads_the_secrets_of_sinks_and_sources(check: Check, tmp_path: Path) -> None:
    tree = yaml.safe_load((tmp_path / "flights.yaml").read_text())
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(with_source(tree, directory="env:NOT_SET")))
    code, _, problem = check(application="own.yaml")
    assert (code, "source files refers to env:NOT_SET, which is missing" in problem) == (2, True)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(with_sink(tree, url="env:NOT_SET")))
    code, _, problem = check(application="own.yaml")
    assert (code, "url of sink table refers to env:NOT_SET, which is missing" in problem) == (
        2,
        True,
    )


def with_source(tree: dict[str, Any], **keys: str) -> dict[str, Any]:
    source = {"name": "files", "type": "file", "format": "ndjson", **keys}
    streams = {name: {**stream, "sources": [source]} for name, stream in tree["streams"].items()}
    return {**tree, "streams": streams}


def with_sink(tree: dict[str, Any], **keys: str) -> dict[str, Any]:
    sink = {"name": "table", "type": "postgres", "table": "t", **keys}
    queries = {name: {**query, "sinks": [sink]} for name, query in tree["queries"].items()}
    return {**tree, "queries": queries}


def test_config_check_reports_all_missing_files_at_once(check: Check, tmp_path: Path) -> None:
    absent = {name: f"absent.{name}" for name in ("certificate", "key", "ca")}
    code, said, problem = check(
        application="absent.yaml",
        event_sync={"tls": absent},
        http={"tls": pair_of(absent)},
        ingest={"tls": pair_of(absent)},
    )
    assert (code, said) == (2, "")
    assert [line.removeprefix("ha-engine: ").split(": ")[0] for line in problem.splitlines()] == [
        str(tmp_path / "absent.yaml"),
        "event_sync.tls.certificate",
        "http.tls",
        "ingest.tls",
    ]


@needs("openssl")
@pytest.mark.parametrize(
    ("name", "place"),
    [("certificate", "event_sync.tls"), ("key", "event_sync.tls"), ("ca", "event_sync.tls.ca")],
)
def test_files_that_are_no_certificates_are_refused(
    check: Check, files: dict[str, str], tmp_path: Path, name: str, place: str
) -> None:
    (tmp_path / "other.pem").write_text("not PEM")
    code, _, problem = check(event_sync={"tls": {**files, name: "other.pem"}})
    assert code == 2
    assert problem.startswith(f"ha-engine: {place}: ")
    assert problem.count("\n") == 1


@needs("openssl")
@pytest.mark.parametrize("section", ["event_sync", "http", "ingest"])
def test_a_key_of_another_certificate_is_refused(
    check: Check, files: dict[str, str], tmp_path: Path, section: str
) -> None:
    own = files if section == "event_sync" else pair_of(files)
    other = Authority(tmp_path / "other").files("node-a")["key"]
    code, _, problem = check(**{section: {"tls": {**own, "key": other}}})
    assert code == 2
    assert problem.startswith(f"ha-engine: {section}.tls: ")


@needs("openssl")
@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"days": -1}, "node-a.pem expired on "),
        ({"begins_in_days": 2}, "node-a.pem is not valid before "),
        ({"san": "DNS:node-x"}, "node-a.pem is for node-x, but node.id is node-a"),
        ({"san": "DNS:*"}, "node-a.pem is for *, but node.id is node-a"),
        ({"use": "clientAuth"}, "node-a.pem is not valid for a server"),
        ({"use": "serverAuth"}, "node-a.pem is not valid for a client"),
    ],
)
def test_a_certificate_that_a_peer_would_refuse_is_refused(
    check: Check, tmp_path: Path, made: dict[str, Any], sentence: str
) -> None:
    files = Authority(tmp_path / "authority").files("node-a", **made)
    code, said, problem = check(event_sync={"tls": files})
    assert (code, said) == (2, "")
    assert problem.startswith("ha-engine: event_sync.tls: ")
    assert sentence in problem
    assert problem.count("\n") == 1


@needs("openssl")
def test_a_certificate_of_another_authority_is_refused(
    check: Check, files: dict[str, str], tmp_path: Path
) -> None:
    other = str(Authority(tmp_path / "other").certificate)
    code, _, problem = check(event_sync={"tls": {**files, "ca": other}})
    assert (code, f"node-a.pem is not signed by {other}; use a" in problem) == (2, True)


@needs("openssl")
def test_a_certificate_of_an_expired_authority_is_refused(check: Check, tmp_path: Path) -> None:
    files = Authority(tmp_path / "authority", days=-1).files("node-a")
    code, _, problem = check(event_sync={"tls": files})
    assert (code, "has expired, or is not valid yet; replace" in problem) == (2, True)


@needs("openssl")
def test_a_common_name_counts_without_alternative_names(check: Check, tmp_path: Path) -> None:
    files = Authority(tmp_path / "authority").files("node-a", san=None)
    code, _, problem = check(event_sync={"tls": files})
    assert (code, problem) == (0, "")


@needs("openssl")
@pytest.mark.parametrize(
    ("san", "host", "code"),
    [
        ("DNS:a.example", "a.example", 0),
        ("DNS:*.nodes.example", "a.nodes.example", 0),
        ("IP:10.0.0.1", "10.0.0.1", 0),
        ("DNS:b.example", "a.example", 2),
        ("IP:10.0.0.2", "10.0.0.1", 2),
        ("DNS:10.0.0.1", "10.0.0.1", 2),
    ],
)
def test_a_certificate_of_http_must_contain_the_advertised_host(
    check: Check, tmp_path: Path, san: str, host: str, code: int
) -> None:
    pair = pair_of(Authority(tmp_path / "authority").files("a", san=san))
    ended, _, problem = check(http={"tls": pair, "advertise": f"https://{host}:8080"})
    assert ended == code
    assert (f"but this node advertises {host}; add" in problem) is bool(code)


@needs("openssl")
def test_a_certificate_that_expires_soon_still_passes(check: Check, tmp_path: Path) -> None:
    code, _, _ = check(event_sync={"tls": Authority(tmp_path).files("node-a", days=3)})
    assert code == 0


def test_config_check_finds_the_addresses_of_yarn(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = {**cluster({}), "master": "yarn"}
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    code, _, said = check(execution=execution)
    assert code == 2
    assert "set HADOOP_CONF_DIR in the environment of the node" in said
    with pytest.raises(HadoopConfigMissing):
        read_files(tmp_path / "engine.yaml")

    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    code, said, _ = check(execution=execution)
    assert code == 0
    assert said.endswith(", HADOOP_CONF_DIR or YARN_CONF_DIR\n")
