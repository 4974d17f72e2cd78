"""What a node keeps in the database, and what it may let go of on its own disk since then.

folding    what the records up to a position have said
capture    the files of a snapshot, taken from under a running Spark
archive    the order of it all: capture, store, show, trim
"""

from ha_engine.archive.archive import Archive

__all__ = ["Archive"]
