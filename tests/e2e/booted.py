"""docs/INSTALL.md on hosts that systemd has booted, typed as it stands there.

    python -m tests.e2e.booted [--cache DIRECTORY] [--keep]

Three hosts boot with systemd as their first process: two for nodes, one for Debian's PostgreSQL.
The script types the commands of the guide into root's shell of each host. Then it kills, reloads,
reboots and upgrades nodes through systemctl. It needs root, systemd-nspawn, debootstrap, and some
5 GB below DIRECTORY, which keeps the tree of the hosts and the packages for the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import INSTALL, ROOT, blocks, installed_config, typed_commands, typed_lines
from tests.e2e.booted_host import BootedHost
from tests.e2e.lan import Lan
from tests.packaged import run
from tests.waiting import wait_until

RELEASE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "iproute2", "procps", "sudo", "curl", "openssl"),
    *("python3", "python3-venv", "openjdk-17-jre-headless", "postgresql"),
)
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "db": "10.0.0.9"}
NODES = {"a": "node-a", "b": "node-b"}
SOURCE = "usr/src/ha-engine"
PATIENCE = 900.0
STREAM = "http://{address}:8080/v1/streams/departures/events"


class Installation:
    """The hosts, and the steps of the guide on them. ``home`` has the trees of the hosts."""

    def __init__(self, home: Path, lan: Lan, base: Path, wheels: Path) -> None:
        self.home = home
        self.hosts = {name: BootedHost(name, home / name, lan, wheels) for name in ADDRESSES}
        for host in self.hosts.values():
            run("cp", "--archive", "--reflink=auto", base, host.tree, cwd=home, within=PATIENCE)
            (host.tree / "etc" / "hostname").write_text(f"{host.name}\n")
            (host.tree / "etc" / "hosts").write_text(f"127.0.0.1 localhost {host.name}\n")
            wanted = "enable" if host.name == "db" else "disable"
            run("chroot", host.tree, "systemctl", wanted, "postgresql", cwd=home)
        self.a, self.b, self.database = self.hosts.values()

    @property
    def nodes(self) -> list[BootedHost]:
        return [self.a, self.b]

    # -- the guide ---------------------------------------------------------------------------------

    def boot(self) -> None:
        for host in (self.database, *self.nodes):
            host.boot()

    def make_the_database(self) -> None:
        """Give the server a certificate for its address, and follow the guide."""
        place = self.database.type("ls -d /etc/postgresql/*/main").strip()
        subject = f"subjectAltName=IP:{ADDRESSES['db']}"
        self.database.type(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 "
            f"-subj /CN=database -addext {subject} -keyout {place}/server.key "
            f"-out {place}/server.pem && chown postgres {place}/server.key"
        )
        settings = {
            "listen_addresses": ADDRESSES["db"],
            "ssl_cert_file": f"{place}/server.pem",
            "ssl_key_file": f"{place}/server.key",
        }
        lines = "\n".join(f"{name} = '{value}'" for name, value in settings.items())
        (allowed,) = [block.text for block in blocks(INSTALL, "") if "hostssl" in block.text]
        files = {"postgresql.conf": lines, "pg_hba.conf": allowed}
        for name, text in files.items():
            with (self.database.tree / place.lstrip("/") / name).open("a") as file:
                file.write(f"\n{text}\n")
        self.database.type("systemctl restart postgresql")
        (statements,) = blocks(INSTALL, "sql")
        for statement in filter(str.strip, statements.text.split(";")):
            self.ask(statement)
        certificate = self.database.tree / place.lstrip("/") / "server.pem"
        for host in self.nodes:
            self._etc(host, "postgres-ca.pem").write_bytes(certificate.read_bytes())

    def install(self, host: BootedHost, number: int = 1) -> None:
        """Type step 3 of the guide, with ``number`` in the name of the directory."""
        source = host.tree / SOURCE
        if not source.exists():
            source.mkdir(parents=True)
            archive = subprocess.run(
                ["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True
            )
            run_with = ["tar", "--extract", f"--directory={source}"]
            subprocess.run(run_with, input=archive.stdout, check=True)
        for line in typed_lines(INSTALL, "## 3. Install the engine, on both hosts"):
            if not line.startswith("apt-get") and not (number > 1 and line.startswith("ln ")):
                host.type(f"cd /{SOURCE} && {line.replace('ha-engine-1', f'ha-engine-{number}')}")

    def make_the_certificates(self) -> None:
        desk = self.home / "desk"
        desk.mkdir()
        for words in typed_commands(INSTALL):
            if words[0] == "openssl":
                run(*words, cwd=desk)
        for name, host in zip(NODES.values(), self.nodes, strict=True):
            for file in ("ca.pem", f"{name}.pem", f"{name}.key"):
                shutil.copy(desk / file, self._etc(host, file))

    def write_the_configs(self) -> None:
        (url,) = re.findall(r"^postgresql://\S+$", INSTALL.read_text(), re.MULTILINE)
        for name, host in zip(NODES.values(), self.nodes, strict=True):
            self._etc(host, "database-url").write_text(f"{url}\n")
            self._etc(host, "ha-engine.yaml").write_text(installed_config(name))
            application = ROOT / "conf" / "applications" / "flights.yaml"
            shutil.copy(application, self._etc(host, "application.yaml"))
            for line in typed_lines(INSTALL, "## 5. Write the config"):
                host.type(line)

    def make_the_tables(self) -> None:
        """Make the tables on one host, and check both with ``ha-engine doctor``."""
        for line in typed_lines(INSTALL, "## 6. Make the engine's tables, once"):
            for host in self.nodes if "doctor" in line else [self.a]:
                host.type(line)

    def start(self, host: BootedHost) -> None:
        """Return when systemd says that the service has started."""
        for line in typed_lines(INSTALL, "## 7. Start"):
            host.type(line)

    def see_that_it_works(self) -> None:
        for line in typed_lines(INSTALL, "## 8. See that it works"):
            if line.startswith("ha-engine switchover"):
                wait_until(self.is_whole, within=PATIENCE, every=0.5)
                line = line.replace("switchover", "switchover --wait 60", 1)
            print(self.a.type(line), end="")

    # -- what an administrator does later ----------------------------------------------------------

    def reload_with_a_token(self) -> None:
        """Require a token of producers by ``systemctl reload``, and take the requirement back."""
        names = ("admin", "alice"), ("ingest", "sensors")
        tokens = {who: json.loads(self.a.type("ha-engine config token --json")) for who in names}
        required = {section: {name: token["sha256"]} for (section, name), token in tokens.items()}
        for host in self.nodes:
            self._change(host, access=required)
            host.type("systemctl reload ha-engine")
        wait_until(lambda: self._send_status() == 401, within=PATIENCE, every=0.2)
        assert self._send_status(tokens[names[1]]["token"]) == 200
        for host in self.nodes:
            self._change(host, access={})
            host.type("systemctl reload ha-engine")
        wait_until(lambda: self._send_status() == 200, within=PATIENCE, every=0.2)

    def upgrade(self) -> None:
        """Follow the guide for a new version: install it beside the old one, then host by host."""
        _on_both(self, lambda host: self.install(host, 2))
        for host in (self.passive, self.active):
            host.type("ha-engine upgrade prepare")
            host.type("systemctl stop ha-engine")
            host.type("ln -sfn /opt/ha-engine-2 /opt/ha-engine")
            host.type("systemctl start ha-engine")
            host.type("ha-engine upgrade verify")
            wait_until(self.is_whole, within=PATIENCE, every=0.5)

    # -- what one sees -----------------------------------------------------------------------------

    def cluster(self) -> Mapping[str, Any] | None:
        for host in self.nodes:
            # Each 'ha-engine status' would take a second of the CPU that the nodes need to start.
            url = f"http://{ADDRESSES[host.name]}:8080/v1/cluster"
            done = host.shell(f"curl --silent --fail --max-time 5 {url}")
            if done.returncode == 0:
                tree: dict[str, Any] = json.loads(done.stdout)
                return tree
        return None

    def is_whole(self) -> bool:
        """Return whether the guide's end is reached: an active, a passive, both warm, protected."""
        cluster = self.cluster()
        if cluster is None or not cluster["protected"]:
            return False
        nodes = cluster["nodes"].values()
        roles = sorted(str(node.get("role")) for node in nodes)
        return roles == ["active", "passive"] and all(node.get("warm") for node in nodes)

    @property
    def active(self) -> BootedHost:
        found = self.active_or_none()
        assert found is not None
        return found

    @property
    def passive(self) -> BootedHost:
        return self.b if self.active is self.a else self.a

    def active_or_none(self) -> BootedHost | None:
        cluster = self.cluster()
        name = cluster["active"] if cluster is not None else None
        named = dict(zip(NODES.values(), self.nodes, strict=True))
        return named.get(str(name))

    def send(self, count: int) -> None:
        """Send ``count`` events with a producer id to whichever node is active."""
        urls = " ".join(f"--url http://{ADDRESSES[host.name]}:8080" for host in self.nodes)
        rows = "\n".join(json.dumps(self._event(number)) for number in range(count))
        (self.a.tree / "srv" / "events.ndjson").write_text(rows)
        self.a.type(f"ha-engine publish departures /srv/events.ndjson {urls} --deadline 600")

    def _event(self, number: int) -> dict[str, Any]:
        at = f"2013-01-01T06:{number // 60 % 60:02}:{number % 60:02}Z"
        return {
            "event_time": at,
            "carrier": "UA",
            "flight": number,
            "origin": "EWR",
            "dest": "IAH",
            "distance": 1400,
        }

    def _send_status(self, token: str | None = None) -> int:
        """Return the status code of the answer of the active to one event."""
        host = self.active_or_none()
        if host is None:
            return 0
        url = STREAM.format(address=ADDRESSES[host.name])
        bearer = f"-H 'Authorization: Bearer {token}'" if token else ""
        event = json.dumps([self._event(0)])
        typed = f"curl -s -o /dev/null -w '%{{http_code}}' {bearer} {url} -d '{event}'"
        done = host.shell(f"{typed} -H 'Content-Type: application/json'")
        return int(done.stdout or 0)

    def ask(self, statement: str) -> str:
        """Run an SQL statement as the superuser of the database."""
        name = "ha_engine" if statement.startswith("SELECT") else "postgres"
        words = ["sudo", "-u", "postgres", "psql", "-v", "ON_ERROR_STOP=1", "-At", "-d", name]
        return self.database.type(shlex.join([*words, "-c", statement])).strip()

    def _etc(self, host: BootedHost, name: str) -> Path:
        return host.tree / "etc" / "ha-engine" / name

    def _change(self, host: BootedHost, **settings: object) -> None:
        path = self._etc(host, "ha-engine.yaml")
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what:<72}{time.monotonic() - began:7.1f} s", flush=True)


def walk(installation: Installation) -> None:
    """Perform every step and print its time; fail where the guide or the unit is wrong."""
    steps: dict[str, Callable[[], object]] = {
        "boot three hosts": installation.boot,
        "3 install the engine on both hosts": lambda: _on_both(installation, installation.install),
        "2 make the database": installation.make_the_database,
        "4 make the certificates": installation.make_the_certificates,
        "5 write the configs, check them": installation.write_the_configs,
        "6 make the tables, check both hosts": installation.make_the_tables,
        "7 systemctl enable --now, until it returns": lambda: installation.start(installation.a),
        "7 the same on the second host": lambda: installation.start(installation.b),
        "8 see that it works": installation.see_that_it_works,
        "until both are warm and protected": lambda: _until_whole(installation),
        "kill -9 the active's service, until the pair is whole": lambda: _kill(installation),
        "systemctl reload with a token, and without": installation.reload_with_a_token,
        "reboot the active's host, until the pair is whole": lambda: _reboot(installation),
        "lose the power of both hosts, until the pair is whole": lambda: _power(installation),
        "upgrade one host at a time": installation.upgrade,
        "systemctl stop on both hosts": lambda: _stop(installation),
    }
    for what, step in steps.items():
        with _timed(what):
            step()
        for host in installation.hosts.values():
            assert not host.failed_units(), f"{host.name}: {host.failed_units()}"


def _on_both(installation: Installation, step: Callable[[BootedHost], None]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(step, installation.nodes))


def _until_whole(installation: Installation) -> None:
    wait_until(installation.is_whole, within=PATIENCE, every=0.5)


def _kill(installation: Installation) -> None:
    killed = installation.active
    killed.type("systemctl kill -s KILL ha-engine")
    wait_until(lambda: installation.active_or_none() is not killed, within=PATIENCE, every=0.2)
    installation.send(100)
    _until_whole(installation)


def _reboot(installation: Installation) -> None:
    host = installation.active
    host.reboot()
    installation.send(100)
    _until_whole(installation)


def _power(installation: Installation) -> None:
    for host in installation.nodes:
        host.lose_power()
    for host in installation.nodes:
        host.boot()
    _until_whole(installation)
    installation.send(100)


def _stop(installation: Installation) -> None:
    for host in installation.nodes:
        host.type("systemctl stop ha-engine")
        left = host.shell("pgrep -u ha-engine -a").stdout
        assert not left, left
        print(host.type("systemd-analyze security --no-pager ha-engine | tail -1"), end="")


# -- the tree of the hosts -------------------------------------------------------------------------


def base_tree(cache: Path) -> Path:
    """Return a tree with Debian and the packages that the guide names, made once."""
    tree = cache / RELEASE
    if not tree.exists():
        draft = tree.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        included = f"--include={','.join(PACKAGES)}"
        command = ["debootstrap", "--variant=minbase", included, RELEASE, str(draft)]
        run(*command, cwd=cache, within=3600)
        draft.rename(tree)
    return tree


def wheelhouse(cache: Path) -> Path:
    """Return a directory with the packages of constraints.txt, which pip verifies by their
    hashes. It is made once for each content of the file."""
    constraints = ROOT / "constraints.txt"
    wheels = cache / f"wheels-{hashlib.sha256(constraints.read_bytes()).hexdigest()[:12]}"
    if not wheels.exists():
        draft = wheels.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(draft)]
        run(*pip, "--require-hashes", "-r", str(constraints), cwd=cache, within=3600)
        # What pip needs to build the packages that have no wheel.
        run(*pip, "setuptools", "wheel", cwd=cache, within=3600)
        draft.rename(wheels)
    return wheels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "ha-engine-hosts")
    parser.add_argument("--keep", action="store_true", help="keep the trees of the hosts")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    asked.cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="booted-", dir=asked.cache))
        if not asked.keep:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        with _timed("make the tree of the hosts, fetch the packages"):
            base, wheels = base_tree(asked.cache), wheelhouse(asked.cache)
        lan = stack.enter_context(Lan(ADDRESSES))
        installation = Installation(home, lan, base, wheels)
        for host in installation.hosts.values():
            stack.callback(host.lose_power)
        walk(installation)


if __name__ == "__main__":
    main()
