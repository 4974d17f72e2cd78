"""The only package that speaks to PostgreSQL and imports SQLAlchemy.

``engine`` opens connections, and translates driver errors into the project's own errors.
``session`` has one connection with a local deadline, for callers that must not hang.
``schema`` has the tables of the project's own schema.
``schema_version`` reads the version and the floor of the schema, and refuses an engine below it.
``migrations`` and ``upgrade`` create, upgrade or finalise the schema, only when an operator asks.
``lease_store`` reads and writes the group's lease row.
``lease_listener`` reports changes of the lease row at once.
``snapshot_store`` stores the revisions of snapshots, and checks a revision before it is visible.
``chunk_rows`` stores the chunks that revisions share.
``sink_table`` creates or checks the tables that queries write to.
``sink_types`` has the column types of a sink's table.
``sink_store`` writes a batch into a sink's table and moves its ledger row in the same transaction.
``bucket_store`` has the ledger rows of a sink whose buckets Spark's tasks write.
``staged_store`` lets tasks write a batch into a staging table, and moves its rows in one step.
``table_rows`` writes rows into a sink's table.
``aggregation_tables`` adds rows to the tables of an aggregation.
``aggregation_reader`` reads these tables.
``ledger`` has the SQL for a ledger row, which names the last batch of a sink.
``ledger_store`` runs each access to a ledger row as a transaction with a deadline.
``embedded`` runs a real PostgreSQL without an installation, for trials and tests.

The ledger row of a sink is in the sink's own database. The ledger row of a sink without a database
is in the node's database.
"""
