"""What a node counts while it works, for metrics and the status.

counters  role changes, failures, transfers
lag       how old the newest events and marks are
latency   quantiles of the last seconds
"""
