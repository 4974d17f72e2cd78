"""The page at ``/`` of two real nodes, used by an operator in a real browser. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.browser import PROGRAMS, Browser, browsing
from tests.e2e.databases import refusing
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.observers import Observer
from tests.e2e.pair import Pair, running_pair
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.test_deploy import ACCESS, RestartedNode, app
from tests.e2e.without_spark import APPLICATION, ROOM
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [needs(*PROGRAMS), pytest.mark.slow]

PATIENCE = 60
LEASE = {"ttl": "6s", "renew_interval": "500ms", "db_timeout": "1s"}
"""Long enough for a page that polls once a second to show the time without an active."""
HOSTILE = "<script>document.title = 'broken'</script><img src='//evil.example/x'>"


@pytest.fixture(scope="module")
def pair(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("page")
    pair = Pair(home, APPLICATION, module_database, NodeWithStandIn, lease=LEASE)
    with running_pair(pair):
        yield pair


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def active(pair: Pair) -> NodeUnderTest:
    """Return the active of a protected pair."""
    return pair.wait_protected()


def shows(browser: Browser, *words: str, where: str = "#verdict") -> None:
    """Return when the page shows all the words."""

    def all_there() -> bool:
        shown = browser.text(where)
        return all(word in shown for word in words)

    wait_until(all_there, within=PATIENCE, every=0.1)


def request(browser: Browser, what: str, token: str = "") -> None:
    """Press the button as an operator, and confirm."""
    shows(browser, "failover", where="#actions")
    browser.click(f"[data-request={what}]")
    if token:
        browser.type("#token", token)
    browser.click("#request-send")


def answered(browser: Browser, *words: str) -> None:
    shows(browser, *words, where="#request-answer")
    browser.click("#request-close")


def test_page_of_either_node_shows_a_healthy_pair_and_asks_no_other_host(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    for node in (pair.other(active), active):
        browser.open(f"{node.url}/")
        shows(browser, "Protected", f"{active.name} is active", "in sync and warm")
        for card, role in ((active, "active"), (pair.other(active), "passive")):
            shows(browser, role, "in sync", "warm", where=f"[data-node={card.name}]")
        shows(browser, "first row of the group", where="#history")
        # The browser reads each node itself, not only through the other.
        wait_until(lambda: _origins(browser) == set(pair.urls), within=PATIENCE)
        assert "cannot reach it" not in browser.text("#nodes")
        assert browser.complaints() == []


def _origins(browser: Browser) -> set[str]:
    return {"/".join(url.split("/")[:3]) for url in browser.asked()}


def test_page_updates_throughput_latency_and_batches(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    browser.open(f"{pair.other(active).url}/")
    shows(browser, "p99", where="#charts")
    before = browser.run("return document.querySelector('.line').getAttribute('d')")

    def moved() -> bool:
        active.send("events", [{"id": 1, "text": "x"}] * 10)
        p99, rate = (browser.text(f"{chart} .legend li:last-child b") for chart in CHARTS)
        return p99.endswith("ms") and rate not in ("–", "0/s")

    wait_until(moved, within=PATIENCE, every=0.1)
    assert browser.run("return document.querySelector('.line').getAttribute('d')") != before
    published = (active.status() or {})["queries"]["copies"]["published"]["table"]
    assert published > 0
    wait_until(lambda: _batch(browser) >= published, within=PATIENCE, every=0.1)


CHARTS = (".chart:nth-child(2)", ".chart:nth-child(1)")


def _batch(browser: Browser) -> int:
    words = browser.text(".sinks li").split("through batch ")[-1].split()
    return int(words[0]) if words and words[0].isdigit() else 0


def test_operator_pauses_resumes_and_switches_over_on_the_page(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    other = pair.other(active)
    browser.open(f"{active.url}/")
    request(browser, "pause", token="secret")
    answered(browser, "Failover is paused", active.name)
    shows(browser, "Failover is paused")
    # The token is only in the tab's memory, not in its storage or in any address.
    assert browser.run("return localStorage.length + sessionStorage.length") == 0
    assert browser.run("return document.cookie + location.href") == f"{active.url}/"
    request(browser, "switchover")
    answered(browser, "failover is paused; run: ha-engine resume")
    request(browser, "resume")
    answered(browser, "Failover is on")
    shows(browser, "Protected")
    request(browser, "switchover")
    answered(browser, f"{other.name} is taking over")
    shows(browser, "Protected", f"{other.name} is active")
    for place in ("#history", "#alerts"):
        shows(browser, "by an operator at the page", where=place)
    # The request goes to the active, on the active's own page.
    shows(browser, f"Switch over at {other.name}", where="#actions")


def test_page_shows_the_reason_of_a_failed_query_as_text(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    nodes = [node for node in pair.nodes.values() if isinstance(node, NodeWithStandIn)]
    browser.open(f"{active.url}/")
    for node in nodes:
        node.failing = HOSTILE
    assert active.send("events", [{"id": 1, "text": "x"}]).status_code == 200
    try:
        shows(browser, "Query copies is FAILED", HOSTILE, where="#alerts")
        shows(browser, "FAILED", HOSTILE, where="#queries")
        assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
        assert "broken" not in browser.run("return document.title")
        assert not any("evil.example" in url for url in browser.asked())
    finally:
        for node in nodes:
            node.failing = ""
            node.http.post("/v1/queries/copies/retry")
    shows(browser, "Protected")


def test_page_shows_an_unreachable_database_and_the_active_continues(
    postgres: EmbeddedPostgres,
    module_database: str,
    pair: Pair,
    active: NodeUnderTest,
    browser: Browser,
) -> None:
    browser.open(f"{active.url}/")
    shows(browser, "Protected")
    with refusing(postgres, module_database):
        # One alert names both nodes, in the same order whichever of them is active.
        names = " and ".join(sorted(pair.nodes))
        shows(browser, f"The database does not answer {names}", where="#alerts")
        assert active.is_active()
    shows(browser, "Protected")
    wait_until(lambda: "database" not in browser.text("#alerts"), within=PATIENCE, every=0.1)


@pytest.mark.nightly("another test of this module kills the active")
def test_page_shows_a_killed_passive_and_its_return(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    passive = pair.other(active)
    browser.open(f"{active.url}/")
    shows(browser, "Protected")
    passive.kill_everything()
    try:
        shows(browser, "Not protected", f"{passive.name} does not answer")
        shows(browser, "no answer", "It was passive", where=f"[data-node={passive.name}]")
        shows(browser, f"{passive.name} does not answer", where="#alerts")
    finally:
        passive.start()
    shows(browser, "Protected", "in sync and warm")


def test_page_of_a_dead_node_continues_with_the_peer_and_shows_the_failover(
    pair: Pair, active: NodeUnderTest, browser: Browser
) -> None:
    successor = pair.other(active)
    browser.open(f"{active.url}/")
    shows(browser, "Protected")
    shows(browser, "passive", where=f"[data-node={successor.name}]")
    wait_until(lambda: any(successor.url in url for url in browser.asked()), within=PATIENCE)
    active.kill_everything()
    try:
        shows(browser, f"Failing over to {successor.name}", f"{active.name} held the lease")
        shows(browser, "takes over", where=f"[data-node={successor.name}]")
        shows(browser, f"The page now shows the answers of {successor.name}", where="#notices")
        shows(browser, "Not protected", f"{successor.name} is active alone")
        shows(browser, "not renewed for a ttl", where="#history")
        assert browser.text("#actions") == ""
    finally:
        active.start()
    shows(browser, "Protected", f"{successor.name} is active")
    wait_until(lambda: browser.text("#notices") == "", within=PATIENCE, every=0.1)


@pytest.mark.nightly("test_page_shows_a_deployment_on_three_nodes needs no deployment")
def test_page_follows_a_deployment_until_every_node_runs_it(
    node_database: str, browser: Browser, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, RestartedNode, **ROOM, **ACCESS)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE)
        active = pair.active()
        assert active is not None
        browser.open(f"{active.url}/")
        shows(browser, "file of its config", "sync protocol", where="#nodes")
        shows(browser, "a file on each host", where="#applications")
        with ThreadPoolExecutor(1) as thread:
            words = "deploy", str(active.application_path), "--by", "alice"
            deploying = thread.submit(app, active, *words)
            shows(browser, "under way", where="#applications")
            assert deploying.result().code == 0
        shows(browser, "deployment 1", "by alice", "done", "Every node", where="#applications")
        shows(browser, "node-a and node-b", where="#applications tbody")
        for name in pair.nodes:
            shows(browser, "deployment 1", where=f"[data-node={name}]")


_APPLICATIONS = """
const [base, told, done] = arguments;
Promise.all(['group', 'verdict', 'sections/applications', 'sections/nodes'].map(
  (name) => import(`${base}/page/${name}.js`),
)).then(([{groupOf}, {verdictOf}, {applications}, {nodeCards}]) => {
  const home = {name: 'a', base, isFresh: () => true, answeredAt: 0, trouble: null, denied: null,
    history: null, ...told};
  const group = groupOf({home, all: [home], peers: new Map()}, 0);
  const place = document.createElement('div');
  place.append(...applications(group).filter(Boolean), ...nodeCards(group));
  const {title, text} = verdictOf(group);
  done([place.textContent, title, text, place.querySelectorAll('.node').length]);
}).catch((error) => done([String(error.stack)]));
"""
DEPLOYMENT = {
    "number": 7, "id": "b1946ac92492d234", "name": "flights", "by": HOSTILE, "at_us": 10**15,
    "on_change": "reset",
}  # fmt: skip
FORMER = {**DEPLOYMENT, "number": 6, "id": "591785b794601e21", "by": "bob", "on_change": None}


def cluster_of_three(**fields: Any) -> dict[str, Any]:
    """GET /v1/cluster of the active a, which has a follower b and a backup c."""

    def node(role: str | None, *, in_sync: bool = True, former: bool = False) -> dict[str, Any]:
        deployment = FORMER if former else DEPLOYMENT
        application = {
            "digest": "d", "archive": deployment["id"], "is_former": former,
            "deployment": None if former else 7,
        }  # fmt: skip
        return {
            "answers": role is not None, "url": None, "role": role, "reason": "", "epoch": 1,
            "suspended": False, "warm": True, "disk_headroom_ok": True, "in_sync": in_sync,
            "journal": {"last": 1, "durable": 1, "committed": 1}, "lag_records": 0,
            "queries": {}, "rejoin": None, "refused": None, "unreachable": None,
            "version": "1.2.3", "protocol_min": 1, "protocol_max": 2, "application": application,
        }  # fmt: skip

    nodes = {
        "a": node("active", former=True),
        "b": node("passive"),
        "c": node("backup", in_sync=False),
    }
    members = [{"node": name, "journal_id": name} for name in ("a", "b")]
    lease = {"holder": "a", "epoch": 1, "paused": False, "in_sync": members}
    rollout = {
        "deployment": DEPLOYMENT, "state": "moving", "restarting": [],
        "progress": "b runs it; a hands over.",
    }  # fmt: skip
    return {
        "group": "g", "node": "a", "active": "a", "protected": True, "lease": lease,
        "nodes": nodes, "unknown_peers": {}, "rollout": rollout, **fields,
    }  # fmt: skip


def told(
    browser: Browser, active: NodeUnderTest, cluster: dict[str, Any], application: Any
) -> list[Any]:
    """The words of the application and of the nodes, the verdict, and the number of nodes."""
    status = {**cluster["nodes"]["a"], "node": "a", "lease": {"authority_seconds": 1}}
    status |= {"query_process": {"connected": True, "step": None}, "uptime_seconds": 1}
    status |= {"snapshot": {"restored": None, "restoring": None}, "journal": {}, "peers": {}}
    if cluster["nodes"]["a"].get("application") is None:
        status.pop("application", None)
    heard = {"status": status, "cluster": cluster, "application": application}
    found: list[Any] = browser.run_async(_APPLICATIONS, active.url, heard)
    assert len(found) == 4, found
    return found


def test_page_shows_a_deployment_on_three_nodes(active: NodeUnderTest, browser: Browser) -> None:
    browser.open(f"{active.url}/")
    cluster = cluster_of_three()
    history = {"name": "flights", "digest": "d", "history": [DEPLOYMENT, FORMER]}
    words, title, text, nodes = told(browser, active, cluster, history)
    assert nodes == 3
    assert title == "Moving to deployment 7"
    assert "b runs it; a hands over." in text
    for wanted in (
        "flights, deployment 7", "under way", HOSTILE, "b runs it; a hands over.",
        "a runs the former application", "b runs it", "c runs it", "7b and c", "6a",
        "former deployment (591785b7)", "deployment 7 (b1946ac9)", "begin again",
        "1.2.3, sync protocol 1 to 2",
    ):  # fmt: skip
        assert wanted in words, wanted


def test_page_shows_a_deployment_that_waits_for_a_dead_node(
    active: NodeUnderTest, browser: Browser
) -> None:
    browser.open(f"{active.url}/")
    cluster = cluster_of_three(protected=False)
    cluster["rollout"] |= {"state": "waiting", "progress": "a waits: b is away."}
    cluster["nodes"]["b"] |= dict.fromkeys(("role", "application", "version"), None)
    cluster["nodes"]["b"]["answers"] = False
    words, title, text, _ = told(browser, active, cluster, None)
    assert title == "Not protected"
    assert "b does not answer" in text
    assert "b no answer" in words
    assert "a waits: b is away." in words


def test_page_does_not_show_a_node_that_restarts_with_a_deployment_as_dead(
    active: NodeUnderTest, browser: Browser
) -> None:
    browser.open(f"{active.url}/")
    cluster = cluster_of_three(protected=False)
    cluster["rollout"]["restarting"] = ["b"]
    cluster["nodes"]["b"] |= dict.fromkeys(("role", "application", "version"), None)
    cluster["nodes"]["b"]["answers"] = False
    # The active does not list the deployment yet.
    history = {"name": "flights", "digest": "d", "history": [FORMER]}
    words, *_ = told(browser, active, cluster, history)
    for wanted in ("It restarts with deployment 7.", "b restarts", "7c", "6a"):
        assert wanted in words, wanted
    assert "no answer" not in words


def test_page_shows_nodes_of_an_older_version(active: NodeUnderTest, browser: Browser) -> None:
    browser.open(f"{active.url}/")
    cluster = cluster_of_three()
    del cluster["rollout"]
    for node in cluster["nodes"].values():
        for name in ("version", "protocol_min", "protocol_max", "application"):
            del node[name]
    words, title, _, nodes = told(browser, active, cluster, None)
    assert (title, nodes) == ("Protected", 3)
    assert "undefined" not in words
    assert "deployment" not in words


_SHADOW = """
const [base, shadows, done] = arguments;
Promise.all(['sections/queries', 'alerts'].map((name) => import(`${base}/page/${name}.js`)))
  .then(([{shadow}, {alertsOf}]) => {
    const status = {queries: {}, snapshot: {restored: null}, lease: {},
      query_process: {connected: true}};
    const members = Object.entries(shadows).map(([name, shadow]) =>
      ({name, answers: true, told: {queries: {}}, heard: {}, status: {...status, shadow}}));
    const [teller] = members;
    const group = {members, teller, active: teller, unknown_peers: {}, history: null};
    const place = document.createElement('div');
    place.append(shadow('q', group) ?? '');
    done([place.textContent, JSON.stringify(alertsOf(group))]);
  }).catch((error) => done([String(error.stack), '']));
"""


def test_page_shows_a_shadow_beside_its_query(active: NodeUnderTest, browser: Browser) -> None:
    browser.open(f"{active.url}/")
    runs = {
        "name": "q~7", "query": "q", "state": "running", "reason": None,
        "batch": 12, "behind_batches": 0,
    }  # fmt: skip
    failed = {**runs, "state": "failed", "reason": HOSTILE, "batch": 9, "behind_batches": 3}
    words, alerts = browser.run_async(_SHADOW, active.url, {"a": runs, "b": failed})
    for wanted in ("Shadow q~7", "batch 12, level", "FAILED", "batch 9, 3 batches behind", HOSTILE):
        assert wanted in words, words
    assert "Shadow q~7 is FAILED on b" in alerts
    assert "ha-engine query discard q" in alerts
    assert browser.run_async(_SHADOW, active.url, {"a": None}) == ["", "[]"]


_REJOINS = """
const [module, stage, restoring, done] = arguments;
import(module).then(({nodeCards}) => {
  const journal = {id: 'j', last: 90, durable: 40, committed: 40};
  const rejoin = {stage, records: 50, batches: 3, bytes: 0};
  const told = {rejoin, journal, lag_records: 50, queries: {q: {batch: 7}}};
  const status = restoring && {
    snapshot: {restoring}, journal: {}, lease: {}, query_process: {}, uptime_seconds: 1};
  const b = {name: 'b', answers: true, role: 'joining', why: '', inSync: false, warm: false,
    disk_headroom_ok: true, heard: null, told, status};
  const a = {name: 'a', answers: true, role: 'active', why: '', heard: null,
    told: {journal: {last: 90}}};
  const group = {members: [a, b], active: a, lease: null, teller: {name: 'a'}};
  const [, card] = nodeCards(group);
  const bar = card.querySelector('progress');
  const step = card.querySelector('[aria-current]').textContent;
  const words = card.querySelector('.rejoin p').textContent;
  done([step, words, bar.hasAttribute('value') ? bar.position : null]);
}).catch((error) => done([String(error)]));
"""


@pytest.mark.parametrize(
    ("stage", "restoring", "words", "position"),
    [
        ("snapshot", {"bytes_done": 25, "bytes_total": 100}, "25 B of 100 B", 0.25),
        ("journal", None, "record 40 of 90: 50 to go", 40 / 90),
        ("starting Spark", None, "50 records and 3 batches to go", None),
        ("batches", None, "50 records and 3 batches to go", 0.7),
    ],
    ids=["snapshot", "journal", "Spark", "batches"],
)
def test_page_shows_stage_and_progress_of_a_returning_node(
    pair: Pair,
    browser: Browser,
    stage: str,
    restoring: dict[str, int] | None,
    words: str,
    position: float | None,
) -> None:
    browser.open(f"{pair.a.url}/")
    module = f"{pair.a.url}/page/sections/nodes.js"
    told: Any = browser.run_async(_REJOINS, module, stage, restoring)
    assert told[0] == stage
    assert words in told[1]
    assert told[2] == pytest.approx(position)


def test_page_shows_the_sources_of_an_application(active: NodeUnderTest, browser: Browser) -> None:
    browser.open(f"{active.url}/")
    shows(browser, "Protected")
    assert browser.text("#sources") == ""
    source = {
        "type": "file", "state": "refused", "offset": "day-3.csv 812", "rows": 1200, "batches": 3,
        "rejected": 2, "error": HOSTILE, "since": 1.0, "failures": 1,
        "backlog_events": 17, "backlog_bytes": 4096, "backlog_seconds": 75.0,
        "dead_letters": "/var/lib/letters",
    }  # fmt: skip
    status = {"sources": {"events": {"drop": source}}}
    told: list[str] = browser.run_async(_SOURCES, f"{active.url}/page/sections/sources.js", status)
    words = " ".join(told)
    for wanted in ("events/drop", "refused", HOSTILE, "1,200 rows in 3 batches", "day-3.csv 812"):
        assert wanted in words
    assert "Dead letters are in /var/lib/letters" in words
    assert "17 events, 4.1 kB, the next 1 min 15 s old" in words


_SOURCES = """
const [module, status, done] = arguments;
import(module).then(({sources}) => {
  const group = {active: {status}, teller: {status}};
  done(sources(group).map((part) => part.textContent));
}).catch((error) => done([String(error)]));
"""


def test_page_fits_on_a_phone_in_light_and_dark(
    active: NodeUnderTest, browser: Browser, tmp_path: Path
) -> None:
    browser.open(f"{active.url}/")
    shows(browser, "Protected")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.devtools("Emulation.setDeviceMetricsOverride", **phone)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    grounds = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.devtools("Emulation.setEmulatedMedia", features=[feature])
        grounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_page_of_an_observer_shows_the_last_state_without_buttons(
    pair: Pair, active: NodeUnderTest, browser: Browser, tmp_path: Path
) -> None:
    observer = Observer(
        tmp_path / "observer", {node.name: node.url for node in pair.nodes.values()}
    )
    observer.start()
    try:
        browser.open(f"{observer.url}/")
        shows(browser, "Protected", f"{active.name} is active", "in sync and warm")
        shows(browser, f"Page of {active.name}", where="#actions")
        assert not browser.run("return document.querySelector('[data-request]') !== null")
    finally:
        observer.stop()
    nobody = Observer(tmp_path / "observer", dict.fromkeys(pair.nodes, "http://127.0.0.1:1"))
    nobody.start()
    try:
        browser.open(f"{nobody.url}/")
        shows(browser, "No node answers this observer", "The last answer is")
        shows(browser, "It was active when it last answered", where=f"[data-node={active.name}]")
    finally:
        nobody.stop()
