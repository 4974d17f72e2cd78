"""Every figure in the documents comes from a command here.

    python -m benchmarks            throughput and latency against plain PySpark (make bench)
    python -m benchmarks idle       CPU of a node that has nothing to do
    python -m benchmarks memory     memory of the node process under three times its load
    python -m benchmarks timeline   where the latency of one event goes
    python -m benchmarks.journal    the journal alone
    python -m benchmarks.receive    the receive stage alone
    python -m benchmarks.sink       the PostgreSQL sink alone

The two sides of the comparison run in turns within one run, on one machine and one PostgreSQL, so
that the ratio stands where the absolute figures drift. ``workload`` is what both compute,
``engine_side`` a node as users run it, ``plain_side`` and ``plain_job`` what a well-informed user
would write without the engine.
"""
