"""ha_engine: keep a PySpark streaming query alive on two machines.

The packages stand in the order in which an event meets them:

    receive -> journal -> sync -> query -> outbox -> publish

``core`` decides and touches nothing; ``driver`` performs what it decides; ``node`` wires the
stages of the node process together; ``supervisor`` keeps the node process and the query process
alive. ``postgres`` is the only package that talks to the database, ``api`` is what operators and
load balancers see, ``client`` is what producers import, ``cli`` is the command line.
"""

__version__ = "0.1.0"
