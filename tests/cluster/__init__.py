"""Spark's cluster managers as real processes, and tests of the engine on them."""
