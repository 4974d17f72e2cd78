"""Spark's own cluster manager as real processes, and tests of the engine on it."""
