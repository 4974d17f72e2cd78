"""``ha-engine`` whose supervisor starts the queries of ``counting`` in place of Spark."""

from __future__ import annotations

import functools
import sys

from ha_engine.cli import main
from ha_engine.supervisor import supervisor
from ha_engine.supervisor.supervised_query import SupervisedQuery

PROGRAM = (sys.executable, "-m", "tests.e2e.counting")

if __name__ == "__main__":
    vars(supervisor)["SupervisedQuery"] = functools.partial(SupervisedQuery, program=PROGRAM)
    main()
