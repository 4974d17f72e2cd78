"""``ha-engine`` whose supervisor starts the stand-in of tier 1 in place of Spark."""

from __future__ import annotations

import functools
import sys

from ha_engine.cli import main
from ha_engine.supervisor import supervisor
from ha_engine.supervisor.supervised_query import SupervisedQuery

PROGRAM = (sys.executable, "-m", "tests.faults.matrix.stand_in")

if __name__ == "__main__":
    vars(supervisor)["SupervisedQuery"] = functools.partial(SupervisedQuery, program=PROGRAM)
    main()
