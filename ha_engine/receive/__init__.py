"""Receive, the first stage: events come in over HTTP or gRPC, are judged, grouped and journalled.

    http, ingest -> intake -> decode -> gate -> the journal (through the Protocol ``Log``)

``decode`` turns a body into a record batch of the stream's schema or says which row is wrong
(``arrow``, ``columns`` and ``diagnose`` beside it); ``gate`` takes a request whole or not at all,
gathers what arrives while the previous record is being written, and answers when the record is
committed (I3); ``producers`` remembers what was stored for whom, so that a retry is answered and
not stored twice (I11, R27); ``room`` bounds the bytes that wait; ``http`` is the only file that
knows HTTP, ``ingest`` the only one that knows gRPC, and ``intake`` is what they share.
"""
