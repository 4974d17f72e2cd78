"""The matrix of faults: many faults of a real pair, and a check of each history.

``world``      is a pair with its database and network; ``needs`` is what else it may have.
``hosts``      runs a node on a host that is a network namespace.
``database``, ``disks``, ``clocks``, ``lines``, ``cgroups`` and ``credentials`` can be disturbed.
``supervised`` is ``ha-engine`` with ``stand_in`` in place of Spark.
``load``       sends numbered events, and watches the roles of the nodes; ``flood`` sends many.
``scene``      is what a fault changes, and the table of the rows with their promises.
``rows``       has the faults.
``tracer``     lets system calls fail with strace.
``history``    is what happened, which ``evidence`` collects and ``checker`` judges.
``runs``       runs rows, keeps the pair between them, and writes a line for each run.
``report``     makes a table of the lines.
"""
