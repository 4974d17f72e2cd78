"""One module per kind of sink; each implements ``publish.Sink``.

``postgres`` writes rows and ledger in one transaction.
``buckets`` finds in the ledger what Spark's tasks have written to such a sink.
``plugin`` handles every other kind: a plug-in delivers the rows, and the ledger is in PostgreSQL or
with the plug-in.
``plugin_buckets`` is for those whose rows Spark's tasks deliver.
``messages`` writes the rows of a batch as messages, for a plug-in of a message broker.
``files``, ``http`` and ``stdout`` are plug-ins that come with the engine.
``dead_letters`` writes rows that a sink will never take to files.
``copy_text`` converts rows to text for COPY.
"""
