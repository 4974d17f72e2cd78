"""Play many histories of one kind, or print one.

python -m tests.dst --kind journal --seeds 10000 --start 1 --workers 2
python -m tests.dst --kind journal --seed 17
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from tests.dst.history import Failed, History, play, tell
from tests.dst.kinds import KINDS
from tests.sim.many import play_all, show_progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dst", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="journal")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one, with its whole history")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]
    if arguments.seed is not None:
        return _one(kind, arguments.seed)
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    result = play_all(seeds, arguments.workers, show_progress, play=partial(play, kind))
    sys.stdout.write("\n\n".join(result.stories[:1]) + "\n" if result.stories else "")
    sys.stdout.write(result.summary + "\n")
    return 1 if result.failed else 0


def _one(kind: type[History], seed: int) -> int:
    try:
        sys.stdout.write(f"{tell(kind, seed)}\nseed {seed} is sound\n")
    except Failed as failed:
        sys.stdout.write(f"{failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
