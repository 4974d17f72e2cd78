"""The node process: all of a node but Spark, which runs in a process of its own.

__main__          parses the arguments and returns the exit code
startup           checks what must hold before anything is opened
database          the lease store and listener, the embedded database, the schema's version
node              starts and stops the stages, and connects them
build             makes the stages from config and application
connectors        makes sinks and sources from config and application
driver            feeds the core and performs its actions
ports             the interfaces through which the driver calls each stage
alarm             the timer that wakes the core
storage           the node's disk: replay at the start, and the core's changes to it
snapshot_actions  performs the snapshots and restores that the core asks for
local_service     the server for the query process: marks out, batches in
adapters          the core as sync, the query process, the status and operators need it
routes, listening the HTTP interface, and its socket
supervisor_link   the pipe to the supervisor
reachability      logs when the database becomes unreachable and when it answers again
data_dir, high_water  the data directory and its lock, and the highest lease ever read
check             reads for ``ha-engine config check`` what lies beyond the config
lease_release     releases the lease of a dead process; also a program of its own
reinit            ``ha-engine reinit``: empties the data directory of a stopped node
"""
