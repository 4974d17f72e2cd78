"""The steps of docs/INSTALL.md for a newcomer, on hosts that are network namespaces.

Commands and files are those of the guide, with paths below a private directory, and the unit's
command line in place of systemd. ``newcomer`` decides the order and measures the times.

The PostgreSQL of the wheel speaks no TLS, so the URL of the database says sslmode=disable.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ha_engine.postgres.engine import open_engine
from tests.docs.pages import INSTALL, ROOT, blocks, installed_config, typed_commands
from tests.e2e import looker
from tests.e2e.databases import server_on, stopped_server
from tests.e2e.lan import Lan
from tests.packaged import build, install, only, run, untouched
from tests.programs import found
from tests.waiting import wait_until

ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "desk": "10.0.0.3", "db": "10.0.0.9"}
NODES = {"a": "node-a", "b": "node-b"}
BALANCER, BALANCED_STATUS = "http://127.0.0.1:8088", "http://127.0.0.1:8089"
PATIENCE = 600.0


class Newcomer:
    """The machine of a newcomer: ``home`` replaces /etc, /var and /opt of each host."""

    def __init__(self, home: Path, lan: Lan, *, complete: bool) -> None:
        self.home, self.lan, self.complete = home, lan, complete
        self.engine = Path()
        self.sockets = ""

    # -- docs/INSTALL.md, steps 2 to 8 -------------------------------------------------------------

    def install_the_wheel(self) -> None:
        build(self.home / "dist")
        wheel = only((self.home / "dist").glob("*.whl"))
        environment = self.home / "opt"
        if self.complete:
            run("python3", "-m", "venv", environment, cwd=self.home)
            run(environment / "bin" / "pip", "install", wheel, cwd=self.home, within=3_600)
            self.engine = environment / "bin" / "ha-engine"
        else:
            self.engine = install(wheel, environment) / "ha-engine"

    def make_the_database(self) -> None:
        """Run initdb, serve its files to the other hosts, and follow the guide."""
        data = stopped_server(self.home / "postgres")
        (allowed,) = [block.text for block in blocks(INSTALL, "") if "hostssl" in block.text]
        with (data / "pg_hba.conf").open("a") as file:
            file.write(allowed.replace("hostssl", "host"))
        self.sockets = str(data.parent)
        shutil.chown(self.sockets, data.stat().st_uid, data.stat().st_gid)
        command = server_on(ADDRESSES["db"], data, Path(self.sockets))
        self._start("db", "postgres", *command)
        wait_until(self._database_answers, within=60, every=0.2)
        (statements,) = blocks(INSTALL, "sql")
        for statement in filter(str.strip, statements.text.split(";")):
            self._ask("postgres", statement)

    def make_the_certificates(self) -> None:
        for words in typed_commands(INSTALL):
            if words[0] == "openssl":
                run(*words, cwd=self.home)

    def write_the_configs(self) -> None:
        (url,) = re.findall(r"^postgresql://\S*?(?=\?)", INSTALL.read_text(), re.MULTILINE)
        (self.home / "database-url").write_text(f"{url}?sslmode=disable\n")
        samples = self.engine.parents[1].glob("lib/python*/site-packages/ha_engine/samples")
        shutil.copy(only(samples) / "flights.yaml", self.home / "application.yaml")
        for host, name in NODES.items():
            written = installed_config(name).replace("/etc/ha-engine", str(self.home))
            own = str(self.home / f"data-{name}")
            self._config(host).write_text(written.replace("/var/lib/ha-engine", own))
            said = self._engine(host, "config", "check", *self._with_config(host))
            assert said.startswith("OK: ")
            assert "event_sync.tls" in said

    def make_the_tables(self) -> None:
        self._engine("a", "db", "init", *self._with_config("a"))

    def check_the_hosts(self) -> None:
        """Run the doctor; a check that fails ends the walk."""
        for host in NODES:
            self._engine(host, "doctor", *self._with_config(host))

    def start(self, host: str) -> None:
        """Run the command line of the unit."""
        unit = (ROOT / "conf" / "systemd" / "ha-engine.service").read_text()
        (line,) = re.findall(r"^ExecStart=\S+/ha-engine (.*)$", unit, re.MULTILINE)
        words = line.replace("/etc/ha-engine/%N.yaml", str(self._config(host))).split()
        self._start(host, NODES[host], str(self.engine), *words)
        wait_until(lambda: self.role(host) in ("active", "passive"), within=PATIENCE, every=0.2)

    def is_whole(self) -> bool:
        """Return whether the guide's end is reached: one active, one passive, both warm,
        protected."""
        cluster = (self.status("a") or {}).get("cluster")
        if not cluster or not cluster["protected"]:
            return False
        nodes = cluster["nodes"].values()
        roles = sorted(str(node.get("role")) for node in nodes)
        return roles == ["active", "passive"] and all(node.get("warm") for node in nodes)

    def send_an_event(self) -> None:
        (words,) = [words for words in typed_commands(INSTALL) if words[0] == "curl"]
        answer = json.loads(run(*self.lan.on("desk", *words, "--silent"), cwd=self.home))
        assert answer["accepted"] == 1, answer

    # -- steps 9 and 10, and the failover ----------------------------------------------------------

    def start_the_balancer(self) -> None:
        config = ROOT / "conf" / "haproxy" / "haproxy.cfg"
        self._start("desk", "haproxy", _program("haproxy"), "-db", "-f", str(config))
        wait_until(lambda: self._status_at(BALANCED_STATUS) is not None, within=30, every=0.2)

    def start_prometheus(self) -> None:
        """Start Prometheus with the unchanged rules; it scrapes each second, since a minute is too
        long."""
        shutil.copy(ROOT / "conf" / "prometheus" / "alerts.yaml", self.home)
        (told,) = [one.text for one in blocks(INSTALL, "yaml") if "scrape_configs" in one.text]
        told = told.replace("/etc/prometheus/alerts.yaml", str(self.home / "alerts.yaml"))
        often = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        (self.home / "prometheus.yml").write_text(often + told)
        self._start(
            "desk",
            "prometheus",
            _program("prometheus"),
            f"--config.file={self.home / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.home / 'prometheus'}",
            "--web.listen-address=127.0.0.1:9090",
        )
        wait_until(lambda: self.firing() is not None, within=60, every=0.5)

    def firing(self) -> set[str] | None:
        """Return the names of firing alerts, None while Prometheus does not answer."""
        answer = self._curl("http://127.0.0.1:9090/api/v1/alerts")
        if answer is None:
            return None
        alerts = answer["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def look(self, host: str, picture: str, *words: str) -> subprocess.Popen[str]:
        """Open the page of that node in a browser until it shows ``words``, and take a picture."""
        url, file = f"http://{ADDRESSES[host]}:8080/", self.home / f"{picture}.png"
        command = [sys.executable, "-m", looker.__name__, url, str(file), *words]
        looking = subprocess.Popen(
            self.lan.on("desk", *command), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert looking.stdout is not None
        assert looking.stdout.readline().strip() == looker.OPEN
        return looking

    def sees(self, host: str, picture: str, *words: str) -> None:
        has_seen(self.look(host, picture, *words))

    def wipe(self, host: str) -> None:
        """Wipe the disk of a lost host."""
        shutil.rmtree(self.home / f"data-{NODES[host]}")

    def publish(self, file: Path, rate: int = 0) -> subprocess.Popen[bytes]:
        words = ["publish", "departures", str(file), "--url", BALANCER, "--producer-id", file.stem]
        words += ["--rate", str(rate), "--batch-rows", "100"]
        return self._start("desk", file.stem, str(self.engine), *words)

    def lose(self, host: str) -> None:
        self.lan.lose(host)

    def role(self, host: str) -> str | None:
        status = self.status(host)
        return None if status is None else str(status["role"])

    def status(self, host: str) -> dict[str, Any] | None:
        """Return the status of that node, None if it does not answer."""
        return self._status_at(f"http://{ADDRESSES[host]}:8080")

    def flights_in_the_table(self) -> int:
        try:
            told = self._ask("ha_engine", "SELECT sum(departed + cancelled) FROM public.delays")
        except Exception:  # the sink creates the table with its first batch
            return 0
        return int(told or 0)

    def operate(self, *words: str) -> str:
        return self._engine("desk", *words, "--url", f"http://{ADDRESSES['b']}:8080")

    def history(self) -> str:
        return self._engine("b", "history", *self._with_config("b"))

    # -- helpers -----------------------------------------------------------------------------------

    def _config(self, host: str) -> Path:
        return self.home / f"{NODES[host]}.yaml"

    def _with_config(self, host: str) -> tuple[str, str]:
        return "--config", str(self._config(host))

    def _engine(self, host: str, *words: str) -> str:
        return run(*self.lan.on(host, str(self.engine), *words), cwd=self.home)

    def _start(self, host: str, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self.lan.on(host, *command),
                cwd=self.home,
                env=untouched(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _status_at(self, url: str) -> dict[str, Any] | None:
        status, cluster = self._curl(f"{url}/v1/status"), self._curl(f"{url}/v1/cluster")
        return None if status is None or cluster is None else {**status, "cluster": cluster}

    def _curl(self, url: str) -> dict[str, Any] | None:
        asked = self.lan.on("desk", "curl", "--silent", "--fail", "--max-time", "2", url)
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        tree: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
        return tree

    def _database_answers(self) -> bool:
        try:
            return bool(self._ask("postgres", "SELECT 1"))
        except Exception:  # any error of the driver while the server is not up yet
            return False

    def _ask(self, database: str, statement: str) -> Any:
        """Query as the superuser over the socket, which network namespaces do not separate."""
        engine = open_engine(f"postgresql+psycopg2://postgres@/{database}?host={self.sockets}")
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None


def has_seen(looking: subprocess.Popen[str]) -> None:
    """Return when the picture is taken; fail when the page did not show the words."""
    told, _ = looking.communicate()
    assert looking.returncode == 0, told


def _program(name: str) -> str:
    path = found(name)
    assert path, f"this needs {name}"
    return path
