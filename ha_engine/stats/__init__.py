"""The counters of a node, for metrics and the status.

counters  role changes, failures, transfers
lag       how old events and marks are
latency   quantiles of the last seconds
"""
