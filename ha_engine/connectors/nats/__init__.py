"""The connector of NATS JetStream: a source and a sink of the messages of one JetStream stream.

``connection``  the options of both, the connection to the servers, and JetStream's requests.
``source``      reads the messages of a stream by their sequences.
``sink``        publishes a query's rows to a stream.
``subjects``    NATS's rules for subjects.
"""
