"""ha_engine: keep a PySpark streaming query alive on two machines.

An event passes through the packages in this order:

    receive -> journal -> sync -> query -> outbox -> publish

``receive``     takes events over HTTP and gRPC, and pulls events from sources.
``journal``     keeps records on the disk.
``sync``        copies records to the other node, and carries acks back.
``query``       runs Spark in a process of its own.
``outbox``      keeps each batch of output until every sink has the batch.
``publish``     delivers batches to sinks.
``buckets``     is what Spark's tasks run to write to a sink.
``core``        makes all decisions of a node, and does no I/O.
``node``        is the node process: it runs the stages, and performs the decisions of the core.
``supervisor``  keeps the node process and the query process alive.
``receiver``    is the process that takes events for streams whose log is a Kafka topic.
``observer``    is the process that shows a pair and its newest output from a third machine.
``snapshot``    stores a node's state in the database, and restores the state.
``deploy``      keeps the files of a deployed application.
``postgres``    is the only package that calls the database.
``api``         serves operators, load balancers and Prometheus.
``web``         has the parts that every HTTP server needs.
``client``      is the library for producers.
``cli``         is the command line.
``app_test``    runs an application on events of a file, and compares its output.
``upgrade``     compares versions, and upgrades a pair of nodes host by host.
``doctor``      checks the host, the database and the peers of a node.
``demo``        is the demo of the command line.
``config``      reads the settings.
``plugins``     defines the interface of sinks and sources.
``connectors``  has the sources and sinks of message brokers.
``testing``     has the tests that sinks and sources of plugins must pass.
``jvm``         has the classes of Java for Spark's driver and executors.
``formats``     reads and writes the formats of files and messages.
``stats``       counts and measures.
``system``      wraps calls of the operating system.

The modules directly in ``ha_engine`` serve every package: ``types``, ``errors``, ``auth``,
``aggregation``, ``logs``, ``redaction`` and ``imports``. The package ``v1`` is generated from
``proto``.
"""

__version__ = "0.1.0"
