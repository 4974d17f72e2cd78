"""Play many seeds, or print one.

python -m tests.sim --seeds 100000 --first 1 --workers 2
python -m tests.sim --seed 17 --tell
python -m tests.sim --seeds 1000 --variant forced
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from tests.sim.history import Failed, play, tell
from tests.sim.many import known_seeds, play_all, show_progress
from tests.sim.variants import Variant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many, behind the known ones")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--tell", action="store_true", help="print the whole history of --seed")
    parser.add_argument(
        "--variant", type=Variant, choices=Variant, default=Variant.PLAIN, help="further faults"
    )
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed, whole=arguments.tell, variant=arguments.variant)
    seeds = [
        *known_seeds(arguments.variant),
        *range(arguments.first, arguments.first + arguments.seeds),
    ]
    one = partial(play, variant=arguments.variant)
    result = play_all(seeds, arguments.workers, show_progress, play=one)
    sys.stdout.write("\n\n".join(result.stories[:3]) + "\n" if result.stories else "")
    sys.stdout.write(result.summary + "\n")
    return 1 if result.failed else 0


def _one(seed: int, *, whole: bool, variant: Variant) -> int:
    try:
        story = tell(seed, variant=variant)
    except Failed as failed:
        sys.stdout.write(f"{failed}\n")
        return 1
    sys.stdout.write(f"{story}\n" if whole else f"seed {seed} is sound\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
