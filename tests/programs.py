"""Programs of the system that some tests need, besides Python and Java."""

from __future__ import annotations

import os
import shutil

import pytest

ALL = "TEST_PROGRAMS"
"""With the value ``all``, a test whose program is missing fails instead of being skipped."""


def found(program: str) -> str | None:
    """Return its path. Debian keeps some programs where only root's PATH finds them."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if found(program) is None]
    return pytest.mark.skipif(
        bool(missing) and os.environ.get(ALL) != "all",
        reason=f"needs {', '.join(missing)}; apt-get install "
        "chromium-driver debootstrap haproxy iproute2 mosquitto nats-server nftables openssl "
        "openjdk-17-jdk-headless pgbouncer prometheus rabbitmq-server redis-server syslog-ng-core "
        "syslog-ng-mod-http systemd systemd-container",
    )
