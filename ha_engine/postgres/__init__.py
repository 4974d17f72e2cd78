"""Everything that speaks to PostgreSQL: the only package that imports SQLAlchemy.

engine          how a connection is opened, and how driver errors become ours
session         one connection behind a local deadline, for callers that must not hang
schema          the tables of the project's own schema
schema_version  which version that has in a database
migrations, upgrade   how a database gets that schema, and only when an operator asks
lease_store     the group's row
lease_listener  hears when that row says something new
snapshot_store  revisions, and who may make one visible
chunk_rows      the chunks that they share
sink_table      tables that queries write to
sink_types      the column types of such a table
sink_store      one batch into a table, with its ledger row in the same transaction
ledger, ledger_store
                which batch a sink has, in its database; for sinks elsewhere, in the node's
embedded        a real PostgreSQL without an installation, for trials and tests
"""
