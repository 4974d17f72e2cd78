"""The keys of a reloaded config that a running node applies, and its report on the rest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ha_engine.config import Config
from ha_engine.config.load import load_config, settings
from ha_engine.config.reload import RELOADABLE, Reloaded, Reloader, differing, merged
from ha_engine.errors import ConfigError


class Files:
    """A config file that a running process reloads."""

    def __init__(self, directory: Path, text: str = "log: {level: info}") -> None:
        self.path, self.taken = directory / "engine.yaml", list[Config]()
        self.write(text)
        self.reloader = Reloader(self.read(), self.read, self.taken.append)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self) -> Config:
        return load_config(self.path, {})

    async def reload(self, text: str) -> Reloaded:
        self.write(text)
        await self.reloader.reload()
        return dataclasses.replace(self.reloader.last, at=None)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_reload_applies_reloadable_keys_and_names_those_that_need_a_restart(
    files: Files,
) -> None:
    assert files.reloader.last == Reloaded()
    told = await files.reload("log: {level: debug}\nlease: {ttl: 7s}\nhttp: {max_connections: 7}")
    assert told == Reloaded(needs_restart=("lease.ttl", "http.max_connections"))
    assert files.reloader.last.at is not None
    assert (files.taken[-1].log.level, files.taken[-1].lease.ttl) == ("debug", 5.0)


async def test_key_that_is_set_back_no_longer_needs_a_restart(files: Files) -> None:
    assert (await files.reload("lease: {ttl: 7s}")).needs_restart == ("lease.ttl",)
    assert (await files.reload("log: {level: error}")).needs_restart == ()


async def test_invalid_file_changes_nothing_and_each_problem_is_reported(files: Files) -> None:
    await files.reload("lease: {ttl: 7s}")
    told = await files.reload("log: {level: loud}\nsnapshot: {intervall: 3s}")
    keys = {problem.split(":")[0] for problem in told.problems}
    assert keys == {"log.level", "snapshot.intervall"}
    assert told.needs_restart == ("lease.ttl",)
    assert len(files.taken) == 1
    assert (await files.reload("log: {level: debug}")).problems == ()
    assert files.taken[-1].log.level == "debug"


async def test_missing_file_is_reported_at_a_reload(files: Files) -> None:
    files.path.unlink()
    await files.reloader.reload()
    assert "does not exist" in files.reloader.last.problems[0]
    assert files.taken == []


async def test_reload_refuses_a_key_that_conflicts_with_one_kept_until_a_restart(
    files: Files,
) -> None:
    """Two segments of 1 MiB fit into max_size; two of the 64 MiB that the node uses do not."""
    told = await files.reload("journal: {segment_size: 1MiB, max_size: 4MiB}")
    assert told.problems == (
        "journal: its reloadable keys do not fit the settings in use: max_size is less than two "
        "segments, and the newest segment is never trimmed; raise max_size, or lower segment_size; "
        "restart the node to apply all changes",
    )
    assert files.taken == []


OPEN_TO_HOSTS = "http: {listen: '10.0.0.1:80', tls: {certificate: a.pem, key: a.key}}\n"
ALICE, BOB = "ab" * 32, "cd" * 32


async def test_reload_keeps_tokens_while_the_node_listens_to_other_hosts(
    tmp_path: Path,
) -> None:
    tokens = f"access: {{admin: {{alice: {ALICE}}}, ingest: {{bob: {BOB}}}}}"
    files = Files(tmp_path, OPEN_TO_HOSTS + tokens)
    told = await files.reload("http: {listen: '127.0.0.1:80'}")
    assert "access.admin and access.ingest would need no token while" in told.problems[0]
    assert files.taken == []
    assert (await files.reload(OPEN_TO_HOSTS + tokens.replace("alice", "carol"))).problems == ()
    assert files.taken[-1].access.admin == {"carol": ALICE}


@pytest.mark.parametrize("door", ["http", "ingest"])
async def test_port_protected_by_tokens_alone_keeps_them_until_it_moves(
    tmp_path: Path, door: str
) -> None:
    """The new config allows an open port since it moves to loopback, but only after a restart."""
    tokens = f"access: {{admin: {{alice: {ALICE}}}, ingest: {{bob: {BOB}}}}}"
    files = Files(tmp_path, f"{door}: {{listen: '10.0.0.1:80', insecure: true}}\n{tokens}")
    told = await files.reload(f"{door}: {{listen: '127.0.0.1:80'}}")
    assert "access.admin and access.ingest would need no token while" in told.problems[0]
    assert files.taken == []
    told = await files.reload(f"{door}: {{listen: '127.0.0.1:80'}}\n{tokens}")
    assert (told.problems, len(files.taken)) == ((), 1)


async def test_reload_reports_a_key_that_the_node_fails_to_apply(
    files: Files,
) -> None:
    def refuse(_: Config) -> None:
        raise ConfigError("http.tls: no certificate")

    reloader = Reloader(files.read(), files.read, refuse)
    files.write("log: {level: debug}")
    await reloader.reload()
    assert reloader.last.problems == ("http.tls: no certificate",)
    assert reloader.last.needs_restart == ()


CHANGED: dict[str, dict[str, Any]] = {
    "access": {
        "admin": {"alice": ALICE},
        "deploy": {"dave": "12" * 32},
        "ingest": {"bob": BOB},
        "read": {"eve": "ef" * 32},
    },
    "journal": {"min_free": "1GiB", "max_size": "2GiB"},
    "snapshot": {"interval": "7s", "revisions_to_keep": 5},
    "log": {"format": "json", "level": "error"},
}


def test_exactly_the_keys_documented_as_reloadable_are_reloadable() -> None:
    names = {f"{section}.{key}" for section, keys in RELOADABLE.items() for key in keys}
    assert {
        ".".join(setting.key) for setting in settings() if "Reloadable." in setting.description
    } == names
    wanted = Config.model_validate(CHANGED)
    assert set(differing(Config(), wanted)) == names
    assert merged(Config(), wanted) == wanted


def test_changed_secret_is_named_and_not_shown() -> None:
    other = Config.model_validate({"database": {"url": "postgresql://u:hunter2@h/d"}})
    assert list(differing(Config(), other)) == ["database.url"]
