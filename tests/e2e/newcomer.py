"""A newcomer's path through docs/INSTALL.md, on hosts that are network namespaces, with its times.

python -m tests.e2e.newcomer [--complete] [--keep] [--pictures DIRECTORY]

The script installs a wheel, creates the database, starts nodes with Spark and sends events through
HAProxy. It then loses one host with its disk, sees the alert of Prometheus and the page, and
returns the host. At the end each flight is in the sink exactly once. It needs root, ip, curl,
openssl, haproxy, prometheus and chromium. It is no part of the tests, since it takes minutes.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyarrow import parquet

from ha_engine.demo.flights import departures
from tests.e2e.guide import ADDRESSES, PATIENCE, Newcomer, has_seen
from tests.e2e.lan import Lan
from tests.waiting import wait_until

BEFORE, MEANWHILE, RATE = 5_000, 12_000, 200
"""Flights sent before and during the loss of a host, and their rate per second during it."""


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what:<72}{time.monotonic() - began:7.1f} s", flush=True)


def walk(newcomer: Newcomer) -> None:
    """Perform every step and measure its time; fail where a promise of the guide does not hold."""
    began = time.monotonic()
    flights = departures()
    parts = {"before": flights.slice(0, BEFORE), "meanwhile": flights.slice(BEFORE, MEANWHILE)}
    for name, rows in parts.items():
        parquet.write_table(rows, newcomer.home / f"{name}.parquet")
    _set_up(newcomer)
    _use(newcomer)
    with _timed("lose the host of the active while events come, until none is unacked"):
        _lose_a_host(newcomer)
    with _timed("until HaEngineNodeDown fires (it waits a minute)"):
        _until(lambda: "HaEngineNodeDown" in (newcomer.firing() or ()))
    with _timed("start the lost host's node again, on an empty disk: until the pair is whole"):
        newcomer.wipe("a")
        returning = newcomer.look("b", "restoring", "Protected, not warm")
        newcomer.start("a")
        has_seen(returning)
        _until(newcomer.is_whole)
    with _timed("until every flight is in the table once, and no alert for the node"):
        total = BEFORE + MEANWHILE + 1
        _until(lambda: newcomer.flights_in_the_table() >= total)
        assert newcomer.flights_in_the_table() == total
        _until(lambda: "HaEngineNodeDown" not in (newcomer.firing() or ()))
    with _timed("ha-engine switchover"):
        print(newcomer.operate("switchover", "--wait", "60"), end="")
    print(newcomer.history())
    print(f"{'from nothing to the end':<72}{time.monotonic() - began:7.1f} s")


def _set_up(newcomer: Newcomer) -> None:
    steps: dict[str, Callable[[], object]] = {
        "2 make the database": newcomer.make_the_database,
        "3 build and install the wheel": newcomer.install_the_wheel,
        "4 make the certificates": newcomer.make_the_certificates,
        "5 write the configs, check them": newcomer.write_the_configs,
        "6 make the tables": newcomer.make_the_tables,
        "6 check the hosts": newcomer.check_the_hosts,
        "7 start the first node: until it is active": lambda: newcomer.start("a"),
        "7 start the second node: until it is passive": lambda: newcomer.start("b"),
        "8 until both are warm": lambda: _until(newcomer.is_whole),
    }
    for what, step in steps.items():
        with _timed(what):
            step()


def _use(newcomer: Newcomer) -> None:
    with _timed("8 send the event of the guide, until it is in the table"):
        newcomer.send_an_event()
        _until(lambda: newcomer.flights_in_the_table() == 1)
    with _timed("9 start HAProxy, 10 Prometheus"):
        newcomer.start_the_balancer()
        newcomer.start_prometheus()
    with _timed("11 open the page: until it says that the pair is protected"):
        newcomer.sees("b", "healthy", "Protected", "in sync and warm")
    with _timed(f"send {BEFORE} flights through HAProxy, until they are in the table"):
        assert newcomer.publish(newcomer.home / "before.parquet").wait(PATIENCE) == 0
        _until(lambda: newcomer.flights_in_the_table() == BEFORE + 1)


def _lose_a_host(newcomer: Newcomer) -> None:
    sending = newcomer.publish(newcomer.home / "meanwhile.parquet", RATE)
    _until(lambda: newcomer.flights_in_the_table() > BEFORE + 1)
    assert newcomer.role("a") == "active"
    failing_over = newcomer.look("b", "failing-over", "Failing over to node-b")
    newcomer.lose("a")
    with _timed("  the other node is active after"):
        _until(lambda: newcomer.role("b") == "active")
    has_seen(failing_over)
    with _timed("  the page says that the other node goes on alone after"):
        newcomer.sees("b", "alone", "Not protected", "node-a does not answer")
    assert sending.wait(PATIENCE) == 0, (newcomer.home / "meanwhile.log").read_text()


def _until(condition: Callable[[], object]) -> None:
    wait_until(condition, within=PATIENCE, every=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--complete", action="store_true", help="download what the wheel needs")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    parser.add_argument("--pictures", type=Path, help="where pictures of the page go")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with ExitStack() as stack:
        # Users other than root need access: the database server does not run as root.
        home = Path(tempfile.mkdtemp(prefix="ha-newcomer-"))
        home.chmod(0o755)
        if not asked.keep:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        lan = stack.enter_context(Lan(ADDRESSES))
        print(f"everything lies in {home}")
        walk(Newcomer(home, lan, complete=asked.complete))
        for picture in home.glob("*.png") if asked.pictures else ():
            shutil.copy(picture, asked.pictures)


if __name__ == "__main__":
    main()
