"""Upgrade a pair of nodes host by host, and say beforehand whether that is possible.

``statement``   says what this installation reads and writes, and with what it works.
``target``      gets the statement of another version.
``comparison``  compares the statements of two versions with each other and with the database.
``steps``       makes a node ready for its stop, and waits for it after its start.

Nothing here is part of a node. Nodes compare each other by themselves (``sync.hello``), and the
database refuses an engine below its floor (``postgres.schema_version``).
"""
