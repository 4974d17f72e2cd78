"""``python -m tests.faults matrix`` runs the matrix of faults; see ``tests.faults.matrix.runs``."""

from __future__ import annotations

import argparse
import sys

from tests.faults.matrix import runs

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    commands = parser.add_subparsers(required=True)
    runs.add_arguments(commands.add_parser("matrix", description=runs.__doc__))
    sys.exit(runs.main(parser.parse_args()))
