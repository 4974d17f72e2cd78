"""Receive, the first stage: events come in over HTTP or gRPC, are judged, grouped and journalled.

    http, ingest -> intake -> decode -> gate -> the journal (through the Protocol ``Log``)

http, http_operations   the routes of events, and their description for OpenAPI
ingest                  the gRPC service
intake                  from the bytes of a request to what the gate takes; the same for both
body                    a request body, read within a limit of bytes and time
decode, arrow, columns, diagnose
                        a body as one record batch of the stream's schema, or which row is wrong
joining                 small JSON bodies that arrive together are parsed together
gate, group             a request is taken whole or not at all, joins others in one record, and is
                        answered when that record is committed (RULES.md#i3)
room, backlog           limits: bytes that wait here, and slow queries or a full disk behind
producers, offsets      what is stored for which producer and source, so that a retry is answered
                        and not stored twice (RULES.md#i11, RULES.md#r27)
pull                    sources that the active reads
"""
