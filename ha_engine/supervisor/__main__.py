"""``python -m ha_engine.supervisor``: run one node until a signal stops it."""

from __future__ import annotations

import argparse
import sys

from ha_engine.supervisor.supervisor import run


def main() -> int:
    """Run the node and return its exit code."""
    parser = argparse.ArgumentParser(prog="ha_engine.supervisor")
    parser.add_argument("--config")
    parser.add_argument("--debug", action="store_true")
    arguments = parser.parse_args()
    return run(arguments.config, debug=arguments.debug)


if __name__ == "__main__":
    sys.exit(main())
