"""Event patterns: sequences of events that a query finds, such as *A, then no B within a minute*.

``pattern`` has a pattern as immutable values, and says what a match is.
``section`` reads a pattern from YAML, and ``match_recognize`` from SQL.
``automaton`` turns a pattern into the states of an automaton.
``expressions`` rewrites the conditions and columns of a pattern, so that Spark can evaluate them.
``plan`` turns a pattern into a Spark data frame.
``explain`` describes a pattern in words, and draws its automaton.

The classes of ``haengine.patterns`` in the JVM run the automaton. docs/PATTERNS.md explains
patterns to users, and docs/adr/0042-the-jvm-matches-patterns.md says why they run there.
"""
