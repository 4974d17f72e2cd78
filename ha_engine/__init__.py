"""ha_engine: keep a PySpark streaming query alive on two machines.

An event meets the packages in this order:

    receive -> journal -> sync -> query -> outbox -> publish

receive     takes events over HTTP and gRPC, and pulls them from sources
journal     keeps records on the disk
sync        copies records to the other node, and carries acks back
query       runs Spark in a process of its own
outbox      keeps each batch of output until every sink has it
publish     delivers batches to sinks
core        decides everything, and does no I/O
node        performs the decisions, and wires the packages above into the node process
supervisor  keeps the node process and the query process alive
snapshot    stores a node's state in the database, and restores it
postgres    is the only package that calls the database
api         serves operators, load balancers and Prometheus
web         has what every HTTP server needs
client      is the library for producers
cli         is the command line
demo        is the demo of the command line
config      reads the settings
plugins     defines the interface of sinks and sources; testing has the tests that they must pass
formats     reads text formats, for producers' files and for sources
stats       counts and measures
system      wraps calls of the operating system

The root has what every package uses: ``types``, ``errors``, ``auth``, ``logs`` with ``redaction``,
and ``imports``. ``v1`` is generated from ``proto``.
"""

__version__ = "0.1.0"
