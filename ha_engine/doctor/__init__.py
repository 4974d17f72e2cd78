"""The checks of ``ha-engine doctor`` and ``ha-engine cluster check``: what a node needs.

Each check is a function that returns a ``Finding``. A check changes nothing, and does not disturb a
running node.

For ``ha-engine doctor``: the host, its database and its peers.

``finding``       is the result of one check.
``check``         runs checks, each with its prerequisites and its deadline.
``plan``          lists all checks for a config.
``tools``         checks Python, Java, Spark and the memory for them.
``disk``          checks the data directory and its disk.
``ports``         checks whether the node can listen on its addresses.
``certificates``  checks the certificates of the config.
``database``      checks the database server, its schema and the rights of the role.
``sinks``         checks whether the sinks may write their tables and ledgers.
``pooler``        checks what reaches the database through a connection pooler.
``clock``         checks the clock of this host.
``stored``        checks the files of the journal and the outbox.
``peers``         checks the connections with the other nodes, and whether the nodes fit together.

For ``ha-engine cluster check``: a Spark cluster and Kafka topics.

``cluster``            lists all checks for a config.
``spark_application``  starts Spark on the executors of the config, and runs code in each.
``executor_probe``     is the code that runs in an executor.
``executors``          judges what the executors and the masters said.
``object_storage``     checks whether this host and the executors share an object storage.
``range_service``      finds or serves the addresses from which executors read events.
``kafka_logs``         checks the topics of streams with a log.
"""

from ha_engine.doctor.check import Result, examine
from ha_engine.doctor.finding import Finding, State

__all__ = ["Finding", "Result", "State", "examine"]
