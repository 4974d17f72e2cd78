"""Histories of two whole nodes, of their database and of their clients.

The stages of both nodes are the engine's own: driver, core, journal, outbox, publisher, gate, sync
stage and their files. The world around them is simulated.

    history.py    a history: what is begun, and how everything heals
    faults.py     the faults and their times
    schedules.py  histories with a story in place of random faults
    host.py       a host: its disk, its clock, its supervisor and the processes on it
    process.py    one node process, with the stages in it
    spark.py      one query process, with a stand-in for Spark that makes batches
    snapshots.py  the snapshots of one node process
    network.py    connections between the hosts
    database.py   the lease row, the sinks with their ledgers, and the snapshots
    group.py      the application and the limits of the group
    checkpoint.py the state of a query on a disk
    producers.py  clients that send until they get an ack
    judge.py      what no history may break
"""
