"""Snapshots: what a node is, as files, in the database; taken while it runs, and taken back.

    chunks      a file as pieces that are named by their content
    manifest    which files a revision has, and what they are a snapshot of
    pinning     a revision that somebody reads is not forgotten meanwhile
    checkpoint  the one routine that copies a checkpoint as of a batch (R21)

The revisions themselves are kept by ``postgres.snapshot_store``.
"""
