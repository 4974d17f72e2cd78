"""No message quotes a part of a password from a URL that is not escaped."""

from __future__ import annotations

import pytest

from ha_engine.errors import ConfigError
from ha_engine.postgres.engine import open_engine


@pytest.mark.parametrize("password", ["se@cret", "@secret", "se@cret:5", "a/se@cret", "se@cre/t"])
def test_url_with_an_unescaped_password_is_refused_without_a_part_of_it(password: str) -> None:
    with pytest.raises(ConfigError, match="write @ as %40") as refusal:
        open_engine(f"postgresql://user:{password}@localhost/db")
    assert "cre" not in str(refusal.value)


def test_escaped_password_is_accepted() -> None:
    engine = open_engine("postgresql://user:se%40cr%2Fet@localhost/db")
    assert (engine.url.password, engine.url.host) == ("se@cr/et", "localhost")
