"""Snapshots in the database: taken while the node runs, and restored.

service       the order of it all: capture, store, show, trim
capture       the files of a snapshot, taken from under a running Spark
base_builder  what the records up to a position have said
base_file     the file beside the journal that holds it
files         the files of a revision as chunks: up to the database, and back
chunks        a file as pieces that are named by their content
manifest      which files a revision has, and what they are a snapshot of
pinning       a revision that somebody reads is not forgotten meanwhile
verification  chunks and manifests that are what they should be
restore       a revision takes the place of journal, outbox and checkpoints
restored      what the newest restore brought

The revisions themselves are kept by ``postgres.snapshot_store``.
"""
