"""The node process: everything of it but Spark, which runs in a process of its own.

__main__          from the arguments to the exit code
startup           what is checked before anything is opened
database          the lease store and listener, the embedded database, the schema's version
node              builds, starts and stops the stages; the one module that sees all of them
build             from config and application to the parts that a node is made of
connectors        the same for sinks and sources
driver            feeds the core and performs its actions
ports             what the driver asks of each stage
alarm             the timer that wakes the core
storage           the node's disk: what it holds at the start, and what the core keeps there
snapshot_actions  snapshots and restores that the core asks for
adapters          the core as sync, the query process, the status and operators need it
routes, listening the HTTP interface, and its socket
supervisor_link   the pipe to the supervisor
reachability      what the log says of an unreachable database
data_dir, high_water  the data directory and its lock, and the highest lease ever read
check             what ``ha-engine config check`` reads beyond the config
lease_release     gives up the lease of a dead process; a program of its own too
reinit            ``ha-engine reinit``: empties the data directory of a stopped node
"""
