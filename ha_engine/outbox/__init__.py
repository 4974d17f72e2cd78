"""Durable output of each batch, kept until every sink has it.

outbox      which batches are admitted, and the verdict on a second attempt (RULES.md#r19)
query_outbox  the admitted batches of one query, in memory and on disk
batch_file  the file of one batch and its digest (RULES.md#i6)
canonical   one way to write each value, for the digest
"""

from ha_engine.outbox.outbox import Admission, Outbox, OutboxBatch

__all__ = ["Admission", "Outbox", "OutboxBatch"]
