"""The source kind ``postgres_cdc`` reads the changes of one PostgreSQL table, and its rows before.

The source reads a replication slot with the output plug-in pgoutput. It calls SQL functions and
needs no replication connection: ``pg_logical_slot_peek_binary_changes`` returns the same changes
again until ``pg_replication_slot_advance``.

``source``      the plug-in: checks what the server has, and opens the source.
``continuity``  decides whether the server still has every change after an offset.
``reading``     reads the slot from one offset on; its docstring has the argument for exactly once.
``options``     the keys of the application file.
``server``      the connection, its SQL, and the translation of its errors.
``pgoutput``    decodes the messages of pgoutput.
``changes``     turns messages into the steps of one table, each with its place in the log.
``initial``     decides which changes the pages of the initial read already contain.
``rows``        writes rows of the table as JSON objects of the stream.
``values``      writes the text of one PostgreSQL value as JSON.
``offset``      the source's offset as text.
"""
