"""Everything that speaks to PostgreSQL: the only package that imports SQLAlchemy.

engine          opens connections, and translates driver errors into the project's own
session         one connection behind a local deadline, for callers that must not hang
schema          the tables of the project's own schema
schema_version  the version of that schema in a database
migrations, upgrade   create or upgrade that schema, only when an operator asks
lease_store     the group's lease row
lease_listener  reports changes of that row at once
snapshot_store  revisions of snapshots, and the check before one becomes visible
chunk_rows      the chunks that revisions share
sink_table      tables that queries write to
sink_types      the column types of such a table
sink_store      one batch into a table, with its ledger row in the same transaction
ledger, ledger_store  (``ledger`` has the SQL, ``ledger_store`` the transaction and its deadline)
                the last batch that a sink has; the row is in the sink's own database, or in
                the node's database for a sink without one
embedded        a real PostgreSQL without an installation, for trials and tests
"""
