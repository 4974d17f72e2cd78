"""The outbox keeps the output of each batch durably until every sink has published the batch.

``outbox``        admits batches, and decides on a second attempt to admit one (RULES.md#r19).
``query_outbox``  has the admitted batches of one query, in memory and on disk.
``batch_file``    writes the file of one batch and computes its digest (RULES.md#i6).
``published``     keeps the newest published batches for observers, within a bound.
``comparing``     compares the output of a query with that of its shadow.
``inspection``    verifies an outbox without changing it.
``canonical``     writes each value in one canonical form, for the digest.
"""

from ha_engine.outbox.outbox import Admission, Outbox, OutboxBatch

__all__ = ["Admission", "Outbox", "OutboxBatch"]
