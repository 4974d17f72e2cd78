"""Event patterns: sequences of events that a query finds, such as *A, then no B within a minute*.

``pattern`` has a pattern as immutable values, and says what a match is.
``automaton`` turns a pattern into the states of an automaton.

The classes of ``haengine.patterns`` in the JVM run the automaton. docs/PATTERNS.md explains
patterns to users.
"""
