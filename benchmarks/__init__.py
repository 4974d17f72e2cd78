"""Every figure in the documents comes from a command here.

    python -m benchmarks            all that decides a figure, with a summary (make bench)
    python -m benchmarks --quick    the same in small
    python -m benchmarks --help     each of them alone
    python -m benchmarks.journal    the journal alone
    python -m benchmarks.sync       a journal that follows another
    python -m benchmarks.sink       the PostgreSQL sink alone
    python -m benchmarks.buckets    the buckets of a table, each by itself or all at once

The two sides of a comparison run in turns within one run, on one machine and one PostgreSQL, so
that the ratio stands where the absolute figures drift. ``workload`` is what both compute,
``engine_side`` a node, or a pair of them, as users run it, ``plain_side`` and ``plain_job`` what a
well-informed user would write without the engine. ``paced`` sends at a rate and counts every wait
from the moment at which a request was due. ``runs`` puts the parts together, ``everything`` the
runs; ``report`` keeps the figures with the machine that they were measured on.
"""
