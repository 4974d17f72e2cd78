"""Services of the operating system for a node, without code about streams or leases.

``fsync``          makes files and their names survive a power loss.
``files``          changes files and directories; tests have a second implementation.
``json_file``      stores and loads small JSON files with a checksum.
``disk``           turns errors of the disk into the engine's own.
``file_lock``      lets one process at a time work in a directory.
``open_files``     raises the limit of open files.
``process_group``  lists and kills the processes of a session.
``procfs``         reads files of processes below /proc.
``stuck_watch``    notices a call on a disk that does not return.
``runtime_dir``    chooses the directory of the node's socket.
``systemd``        reports readiness to the service manager and feeds its watchdog.
"""
