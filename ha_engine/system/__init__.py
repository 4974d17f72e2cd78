"""What the operating system offers a node, without a word of streams or leases.

fsync          files and names that survive a loss of power
file_lock      one process at a time in a directory
process_group  sessions of processes: whether one lives, and its end
procfs         what /proc says of a process
runtime_dir    the directory of the sockets
systemd        readiness and watchdog of the service manager
"""
