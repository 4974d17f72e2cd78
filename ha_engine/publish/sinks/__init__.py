"""One module per kind of sink; each implements ``publish.Sink``.

postgres      rows and ledger in one transaction
plugin        every other kind: a plug-in delivers the rows, the ledger is in PostgreSQL
files, http, stdout   the kinds that come with the engine
dead_letters  rows that a sink will never take, in files
copy_text, json_lines   rows as text for COPY, and as JSON
"""
