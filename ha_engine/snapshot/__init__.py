"""Take snapshots into the database while the node runs, and restore snapshots.

``service`` runs all steps in order: capture, store, make visible, trim.
``capture`` links the files of a snapshot into another directory while Spark runs.
``checkpoint_storage`` replaces checkpoints in directories by restored ones.
``object_storage`` does so on object storage, and keeps the objects that snapshots name.
``base_builder`` builds a base from the journal's records up to a position.
``base_file`` stores the base as a file beside the journal.
``files`` uploads the files of a revision as chunks, and downloads them.
``chunks`` splits a file into pieces that are named by the digest of their content.
``manifest`` lists the files of a revision, and the state that these files contain.
``pinning`` prevents the removal of a revision while a node reads it.
``verification`` checks the chunks and the manifest of a revision.
``restore`` replaces a node's journal, outbox and checkpoints by a revision.
``restored`` stores a note about the revision from which the node's data began.

The module ``postgres.snapshot_store`` stores the revisions.
"""
