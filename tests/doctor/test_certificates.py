"""The doctor's checks of real certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ha_engine.config import Config
from ha_engine.doctor.certificates import certificate
from ha_engine.doctor.finding import Finding, State
from ha_engine.errors import ConfigError
from ha_engine.web.certificates import presented
from tests.doctor.configs import config_in
from tests.programs import needs
from tests.sync.authority import Authority

pytestmark = needs("openssl")


def config_of(home: Path, files: dict[str, str]) -> Config:
    return config_in(home, event_sync={"tls": files})


def checked(config: Config) -> Finding:
    (one,) = presented(config)
    return certificate(config, one)


def test_a_sound_certificate_passes_with_its_name_and_last_day(tmp_path: Path) -> None:
    finding = checked(config_of(tmp_path, Authority(tmp_path / "ca").files("node-a")))
    assert finding.state is State.OK
    assert "node-a.pem for node-a, valid until 2" in finding.text


def test_a_certificate_that_expires_within_30_days_is_a_warning(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files("node-a", days=10)
    finding = checked(config_of(tmp_path, files))
    assert finding.state is State.WARNING
    assert finding.text.endswith(", in 9 days")
    assert finding.remedy == "replace the certificate before that day"


def test_an_authority_that_expires_within_30_days_is_a_warning(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca", days=10).files("node-a")
    finding = checked(config_of(tmp_path, files))
    assert finding.state is State.WARNING
    assert finding.text.startswith(f"the authority {files['ca']} expires on ")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"days": -1}, "expired on"),
        ({"begins_in_days": 2}, "is not valid before"),
        ({"san": "DNS:node-x"}, "is for node-x, but node.id is node-a"),
        ({"use": "clientAuth"}, "is not valid for a server"),
        ({"use": "serverAuth"}, "is not valid for a client"),
        ({"use": "codeSigning"}, "is not valid for a server or a client"),
    ],
)
def test_a_certificate_that_no_peer_accepts_fails(
    tmp_path: Path, made: dict[str, Any], text: str
) -> None:
    finding = checked(config_of(tmp_path, Authority(tmp_path / "ca").files("node-a", **made)))
    assert (finding.state, text in finding.text) == (State.FAILED, True)


def test_all_problems_of_a_certificate_are_named(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files("node-a", days=-1, san="DNS:node-x")
    other = Authority(tmp_path / "other").certificate
    finding = checked(config_of(tmp_path, {**files, "ca": str(other)}))
    for text in ("expired on", "is for node-x", "is not signed by"):
        assert text in finding.text


def test_an_expired_authority_fails_also_if_the_certificate_expires_soon(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca", days=-1).files("node-a", days=10)
    finding = checked(config_of(tmp_path, files))
    assert (finding.state, "has expired, or is not valid yet" in finding.text) == (
        State.FAILED,
        True,
    )


def test_a_key_that_every_user_may_read_is_a_warning(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files("node-a")
    Path(files["key"]).chmod(0o640)
    assert checked(config_of(tmp_path, files)).state is State.OK
    Path(files["key"]).chmod(0o644)
    finding = checked(config_of(tmp_path, files))
    assert (finding.state, finding.remedy) == (State.WARNING, f"chmod 0640 {files['key']}")


def test_an_authority_whose_successor_is_in_the_same_file_passes(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old", days=-1), Authority(tmp_path / "new")
    both = tmp_path / "both.pem"
    both.write_text(old.certificate.read_text() + new.certificate.read_text())
    files = {**new.files("node-a"), "ca": str(both)}
    assert checked(config_of(tmp_path, files)).state is State.OK


def test_a_key_of_another_certificate_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    key = authority.files("node-x")["key"]
    with pytest.raises(ConfigError, match="cannot use certificate"):
        checked(config_of(tmp_path, {**authority.files("node-a"), "key": key}))
