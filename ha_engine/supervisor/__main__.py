"""``python -m ha_engine.supervisor``: one node until it is told to stop."""

from __future__ import annotations

import argparse
import sys

from ha_engine.supervisor.supervisor import run


def main() -> int:
    """The exit code of the node."""
    parser = argparse.ArgumentParser(prog="ha_engine.supervisor")
    parser.add_argument("--config")
    parser.add_argument("--debug", action="store_true")
    arguments = parser.parse_args()
    return run(arguments.config, debug=arguments.debug)


if __name__ == "__main__":
    sys.exit(main())
