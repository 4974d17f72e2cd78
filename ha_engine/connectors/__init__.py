"""Connectors: the kinds of sources and sinks of other systems, each in a package of its own.

A connector uses only what a package of other people could use: ``ha_engine.plugins``, the errors,
and the types of ``ha_engine.config.quantities``. Each needs an extra of this package, such as
``pip install ha-engine[nats]``. A connector imports its library when an instance is opened, so
that ``app check`` and the other connectors work without it.

``library``       imports the library of an extra, or names the extra that is missing.
``loop_thread``   runs the calls of an asyncio library from the blocking calls of a plug-in.
``streams``       has parts that connectors share.
``tls``           reads the files of TLS.
``row_label``     labels messages, so that a new active knows how much of a batch is delivered.
``kafka``         reads and writes the topics of Kafka.
``mqtt``          reads and publishes the messages of a broker of MQTT 5.
``nats``          reads and writes the streams of NATS JetStream.
``rabbitmq``      reads queues and streams of RabbitMQ, and publishes to its exchanges.
``redis``         reads and writes the streams of Redis.
``s3``            reads and writes the objects of S3, and of other object stores.
``postgres_cdc``  reads the changes of a table of PostgreSQL; it needs no extra.
"""
