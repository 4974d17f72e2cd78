"""The matrix of faults: many faults of a real pair, and a check of each history.

``hosts``      runs two nodes and their PostgreSQL on hosts that are network namespaces.
``supervised`` is ``ha-engine`` with ``stand_in`` in place of Spark.
``load``       sends numbered events, and watches the roles of the nodes.
``faults``     is the table of the rows: what happens, and what is promised then.
``history``    is what happened, which ``evidence`` collects and ``checker`` judges.
``runs``       runs rows, keeps the pair between them, and writes a line for each run.
``report``     makes a table of the lines.
"""
