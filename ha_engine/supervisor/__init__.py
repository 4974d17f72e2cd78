"""The supervisor, which is the parent process of a node and imports as little as possible.

``__main__``          is the program.
``supervisor``        keeps the node process alive, and releases the lease of a failed node process.
``supervised_query``  starts and ends the query process at the node process's request.
``start_watch``       decides whether a start of Spark makes progress.
``plain_log``         writes log lines without structlog.
"""
