"""Deterministic simulation of the engine's own stages over a simulated disk, clock and network.

``tests.sim`` plays histories of the core alone, with stand-ins for every stage around it. Here the
stages are real, and the world around them is simulated. Each history comes from a seed, so a
failure can be repeated.

    disk.py              a disk that fails and forgets
    loop.py              an event loop in virtual time, without threads
    history.py           a history and its transcript; the processes on one disk
    journal_history.py   histories of one journal
    outbox_history.py    histories of one outbox
    publish_history.py   histories of two publishers and one sink
    kafka_history.py     histories of a stream whose log is in Kafka
    kafka_sink_history.py  histories of two nodes with one Kafka sink
    brokers.py           the brokers of such a history, behind the client library of Kafka
    pair/                histories of two whole nodes
    snapshot_history.py  histories of one node's snapshots
    revisions.py         the store of these snapshots, in memory
    kinds.py             the kinds of histories for ``python -m tests.dst``
"""
