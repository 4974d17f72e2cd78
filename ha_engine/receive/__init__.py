"""Receive, the first stage of the engine: it takes events over HTTP or gRPC, and journals them.

    http, ingest -> intake -> decode -> gate -> the journal (through the Protocol ``GroupJournal``)

http, http_operations   the routes of events, and their description for OpenAPI
ingest                  the gRPC service
forwarding              lets the active store the events that come while this node is another one
answers                 the answers over gRPC
intake                  turns the bytes of a request into the gate's input, for both protocols
body                    reads a request body, within limits on its bytes and its time
decode, arrow, columns, diagnose
                        turn a body into one record batch of the stream's schema, or name the bad
                        row
cloud_events            turns CloudEvents into the JSON that ``decode`` takes
remote_write            turns the samples of Prometheus remote write into a record batch
joining                 parses in one call the small JSON bodies that arrive at the same time
gate, group             take a request whole or not at all, put it into one record with others, and
                        answer it when that record is committed (RULES.md#i3)
receivers               the gate and the sources, opened and closed together
byte_budget, backlog    limits: bytes that wait in this stage, slow queries, a full disk
producers, offsets      remember the stored requests and batches of each producer and source, so
                        that a retry is answered and not stored twice (RULES.md#i11, RULES.md#r27)
log_history             remember where the log of a stream ended at each record, if it is in Kafka
pull                    sources that the active reads
"""
