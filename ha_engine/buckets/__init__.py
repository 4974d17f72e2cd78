"""The code with which Spark's tasks write the buckets of a sink (RULES.md#r34).

``place`` has the destination of the buckets, which the driver sends to the tasks.
``table`` opens the database of a sink that is a table.
``plugin`` writes one bucket of a batch with a plug-in.
``task``  writes one bucket of a batch, and says whether it did.
``atomic`` begins and commits a batch of which readers see all rows at once.
"""
