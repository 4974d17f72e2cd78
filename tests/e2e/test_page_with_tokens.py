"""The page of nodes that require a token, in a real browser. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ha_engine.auth import digest_of, new_token
from tests.browser import PROGRAMS, Browser, browsing
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.test_page import shows
from tests.e2e.test_reload import reload
from tests.e2e.without_spark import APPLICATION
from tests.programs import needs

pytestmark = [needs(*PROGRAMS), pytest.mark.slow, pytest.mark.rotates("files")]

READS, READS_LATER, SENDS, RULES = (new_token() for _ in range(4))
ACCESS = {
    "read": {"wall": digest_of(READS)},
    "ingest": {"shop": digest_of(SENDS)},
    "admin": {"alice": digest_of(RULES)},
}


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithStandIn, access=ACCESS)
    for node in pair.nodes.values():
        node.http.headers["Authorization"] = f"Bearer {RULES}"
    with running_pair(pair):
        yield pair


@contextmanager
def asked_at(node: NodeUnderTest) -> Iterator[Browser]:
    """Open the page of ``node``, which asks for a token."""
    with browsing() as browser:
        browser.open(f"{node.url}/")
        shows(browser, "The node asks for a token")
        yield browser


def give(browser: Browser, token: str) -> None:
    browser.type("#read-token", token)
    browser.click("#reading button")


def test_page_asks_for_a_token_and_reads_both_nodes_with_it(pair: Pair) -> None:
    active = pair.wait_protected()
    with asked_at(active) as browser:
        give(browser, SENDS)
        shows(browser, "It refused this token", "this token is for ingest")
        assert not any(pair.other(active).url in url for url in browser.asked())
        give(browser, READS)
        shows(browser, "Protected", f"{active.name} is active")
        browser.complaints()  # discard those of the refusals
        assert not browser.run("return document.getElementById('reading').checkVisibility()")
        # The browser got the state of Spark there from the other node itself.
        shows(browser, "passive", "Spark", where=f"[data-node={pair.other(active).name}]")
        assert browser.complaints() == []
        stored = "return localStorage.length + sessionStorage.length + document.cookie.length"
        assert browser.run(stored) == 0
        assert browser.run("return location.href") == f"{active.url}/"


@pytest.mark.nightly("another test of this module asks for a token")
def test_page_asks_again_for_a_revoked_token_and_shows_no_outage(pair: Pair) -> None:
    active = pair.wait_protected()
    with asked_at(active) as browser:
        give(browser, READS)
        shows(browser, "Protected", f"{active.name} is active")
        access = ACCESS | {"read": {"wall": digest_of(READS_LATER)}}
        assert reload(active, access=access)["problems"] == []
        shows(browser, f"{active.name}, which serves this page, asks for another", where="#notices")
        assert reload(pair.other(active), access=access)["problems"] == []
        shows(browser, "The node asks for a token", "It refused this token")
        give(browser, READS_LATER)
        shows(browser, "Protected", f"{active.name} is active")
        shows(browser, "passive", "Spark", where=f"[data-node={pair.other(active).name}]")
