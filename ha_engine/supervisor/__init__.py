"""The parent process of a node. It lives as long as the node does, so it imports next to nothing.

__main__          the program
supervisor        keeps the node process alive, and releases the lease when it has died
supervised_query  starts and ends the query process at the node process's request
start_watch       decides whether a start of Spark makes progress
plain_log         writes log lines without structlog
"""
