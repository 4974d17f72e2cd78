"""The counters of a node, for its metrics and its status.

``counters`` counts role changes and failures, and measures transfers of snapshots.
``lag`` measures the age of events and marks.
``latency`` has quantiles of durations in the last seconds.
"""
