"""What the world of a row has besides two nodes, a database and a network."""

from __future__ import annotations

DISKS = "disks"
"""A disk of each node, which can fill, fail and lose power."""
PARTS = "parts"
"""A small file system of each node for each of PART_NAMES."""
DATABASE_DISK = "database disk"
"""A disk of the database."""
CLOCKS = "clocks"
"""A wall clock of each host, which can jump."""
LINES = "lines"
"""Lines between the hosts, which delay, reorder and stop what passes."""
STANDBY = "standby"
"""A standby of the lease's PostgreSQL. Then the sink has a server of its own."""
LOGIN = "login"
"""A role of the database for the nodes, with a password."""
SECURE = "secure"
"""Certificates of the nodes, and tokens of their callers."""
SEGMENTS = "segments"
"""Journals of small segments, which the nodes trim soon after a snapshot."""
SPARK = "spark"
"""Spark, which only tier 2 has."""

PART_NAMES = ("outbox", "checkpoints")
