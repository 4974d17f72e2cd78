"""The operating system's services for a node. This package knows nothing about streams or leases.

fsync          makes files and names survive a loss of power
disk           turns errors of the disk into the engine's own
file_lock      lets one process at a time work in a directory
process_group  lists and kills the processes of a session
procfs         reads /proc
runtime_dir    the directory of the sockets
systemd        readiness and watchdog of the service manager
"""
