"""Spark lowers its priority once it runs: every thread of its session, and of no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ha_engine.query.weight import START_NICE

SESSION = """
import os, subprocess, sys, threading
from ha_engine.query.weight import Weight

def niceness():
    tasks = [f"/proc/{pid}/task" for pid in (os.getpid(), child.pid)]
    threads = [int(name) for task in tasks for name in os.listdir(task)]
    return sorted({os.getpriority(os.PRIO_PROCESS, thread) for thread in threads})

weight = Weight(int(sys.argv[1]))
weight.starting()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0)
done = threading.Event()
threading.Thread(target=done.wait).start()
began = niceness()
weight.batch_ended()
weight.batch_ended()
print(*began, *niceness(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
child.communicate()
done.set()
"""


@pytest.mark.parametrize(
    ("at_work", "starting"), [(15, START_NICE), (START_NICE, START_NICE), (2, 2), (0, 0)]
)
def test_spark_starts_at_a_close_priority_and_lowers_it_after_a_batch(
    at_work: int, starting: int
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SESSION, str(at_work)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    own = os.getpriority(os.PRIO_PROCESS, 0)
    expected = [min(19, own + starting), min(19, own + at_work), own]
    assert [int(word) for word in run.stdout.split()] == expected
