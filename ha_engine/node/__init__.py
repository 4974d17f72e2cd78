"""The node process: all of a node except Spark, which runs in a separate process.

``__main__`` parses the arguments and returns the exit code.
``startup`` checks the config, the application and the host before the node opens anything.
``database`` makes the clients of the database, runs an embedded one, and checks the schema.
``node`` connects, starts and stops the stages.
``build`` makes the stages from the config and the application.
``connectors`` makes sinks and sources from the config and the application.
``connections`` tries sources and sinks without a node, for ``ha-engine app check`` and ``source``.
``driver`` gives inputs to the core and performs its actions.
``ports`` has the interfaces through which the driver calls each stage.
``alarm`` is the timer that wakes the core.
``storage`` replays the node's disk at a start, and performs the core's changes to the disk.
``snapshot_actions`` performs the snapshots and restores that the core requests.
``local_service`` is the gRPC service for the query process.
``stream_logs`` knows the streams whose events stay in Kafka, and watches their topics.
``range_server`` is the gRPC service through which executors on other hosts read the journal.
``forwarding`` finds the peer that is the active, for the events that this node takes meanwhile.
``deploying`` checks an application, and deploys it to every node.
``shadowing`` decides whether a shadow may begin, and whether it may take its query's place.
``adapters`` lets sync, the query process, the status and operators use the core.
``routes`` has all routes of the HTTP interface.
``supervisor_link`` is the node process's end of the socket pair with the supervisor.
``reachability`` logs when the database becomes unreachable and when it answers again.
``data_dir`` has the data directory and its lock.
``high_water`` has the file with the highest epoch and version of the lease that the node has read.
``check`` reads every file that the config names, for ``ha-engine config check``.
``lease_release`` releases the lease of a dead process, also as a separate program.
``reinit`` empties the data directory of a stopped node, for ``ha-engine reinit``.
"""
