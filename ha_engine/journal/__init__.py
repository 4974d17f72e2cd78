"""The journal has every record of the node, in order, on the node's own disk.

    record.py      a record as a frame of bytes, and back
    reading.py     reads frames of a segment file; Spark's workers use it
    tail.py        distinguishes a torn end of a file from damage
    segment.py     one segment file
    identity.py    the small file that identifies a journal
    opening.py     reads and checks a journal directory without changing it
    journal.py     the journal: append, sync, read, truncate, trim
    writer.py      the journal for asyncio: group commit in a thread (import it by its own name)
    inspection.py  what ``ha-engine journal`` shows
    set_aside.py   keeps records that an operator gave up in a file for people

Spark's workers import this package, so its import loads no asyncio, database or configuration.
"""

from ha_engine.journal.journal import Journal
from ha_engine.journal.reading import read_extent

__all__ = ["Journal", "read_extent"]
