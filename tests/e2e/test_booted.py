"""The install guide on hosts that systemd boots: ``python -m tests.e2e.booted`` as a test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e import booted
from tests.programs import needs


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.nightly("test_install has the guide's commands, and test_systemd the unit")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root boots hosts")
@needs("systemd-nspawn", "debootstrap", "ip", "nsenter")
def test_pair_of_booted_hosts_outlives_kills_reboots_and_an_upgrade() -> None:
    command = [sys.executable, "-m", booted.__name__]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as walk:
        try:
            told, _ = walk.communicate()
        finally:
            # It ends its hosts on SIGTERM.
            walk.terminate()
    assert walk.returncode == 0, told
