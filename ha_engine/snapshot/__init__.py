"""Snapshots in the database: taken while the node runs, and restored.

service       all steps in order: capture, store, show, trim
capture       links the files of a snapshot while Spark runs
base_builder  builds a base from the records up to a position
base_file     the base as a file beside the journal
files         uploads the files of a revision as chunks, and downloads them
chunks        splits a file into pieces that are named by their content
manifest      which files a revision has, and what they are a snapshot of
pinning       keeps a revision from being forgotten while it is read
verification  checks the chunks and the manifest of a revision
restore       replaces journal, outbox and checkpoints by a revision
restored      notes which revision the node's data began from

``postgres.snapshot_store`` stores the revisions.
"""
