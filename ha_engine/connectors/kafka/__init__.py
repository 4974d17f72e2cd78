"""Kafka: read a topic into a stream, and write the output of a query to a topic, exactly once.

``options``  has the options of a connection, and makes the settings of librdkafka from them.
``errors``   says which errors of Kafka pass, and which a person must correct.
``cluster``  asks the brokers about a topic: its id, its partitions and their first and last offset.
``offsets``  is the offset of a source: the next offset of each partition, as text.
``history``  requires that the log of a partition has not changed before an offset.
``log``      says where a topic ends whose events stay in Kafka, for a stream with that log.
``retention`` says how far a topic's retention is from the records that a node needs.
``source``   reads a topic, without a consumer group.
``ledger``   reads the ledger of a sink from a compacted topic.
``sink``     writes the rows of a batch and its ledger record in one transaction.
"""
