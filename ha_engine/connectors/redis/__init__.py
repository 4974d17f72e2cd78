"""The connector of Redis streams: a source and a sink of the entries of one stream.

``connection``  the options of both, the connection to the server, and its errors.
``source``      reads the entries of a stream by their ids.
``sink``        adds a query's rows to a stream, each under an id of its own.
"""
