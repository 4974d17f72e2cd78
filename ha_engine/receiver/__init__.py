"""The receiver, a process that takes events over HTTP or gRPC for streams whose log is a topic of
Kafka, and writes them to the topic.

A receiver has no disk, no lease, no database and no Spark. Any number of receivers may run behind a
balancer. The package ``receive`` decodes requests, as on a node; this package only stores them
elsewhere.

    receive -> store -> topic -> the brokers

process   runs a receiver until it gets a signal: starts and stops the other parts
store     decides whether a request is taken, and answers it when the brokers have all of its events
topic     writes records to one topic with an idempotent producer, and watches its brokers
records   turns a record batch into the records of a topic
routes    has the routes for balancers and Prometheus
metrics   counts what a receiver takes and refuses
"""
