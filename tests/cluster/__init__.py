"""Spark's own cluster manager and YARN as real processes, and tests of the engine on it."""
