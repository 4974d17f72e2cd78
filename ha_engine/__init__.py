"""ha_engine: keep a PySpark streaming query alive on two machines.

The packages stand in the order in which an event meets them:

    receive -> journal -> sync -> query -> outbox -> publish

``core`` decides and touches nothing; ``node`` performs what it decides, and wires the stages of the
node process together; ``supervisor`` keeps the node process and the query process alive.
``snapshot`` stores what a node is in the database and restores it. ``postgres`` is the only package
that talks to the database, ``api`` is what operators and load balancers see, over what ``web`` has
for every server. ``client`` is what producers import, ``cli`` the command line, ``demo`` its demo.
``config`` are the settings, ``plugins`` the kinds of sinks and sources, ``testing`` the tests that
they must pass. ``stats`` counts, and ``system`` is what the operating system offers. Here are only
``types``, ``errors``, ``auth``, ``logs`` with ``redaction``, and ``imports``; ``v1`` is generated.
"""

__version__ = "0.1.0"
