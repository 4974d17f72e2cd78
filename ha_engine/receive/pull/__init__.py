"""Sources that the active pulls, each into the gate as if it were a producer.

    a plug-in -> calls -> puller -> sift -> the intake and the gate

``receivers`` starts them when the gate opens and stops them when it closes; ``puller`` is one
source's life, from the offset that the journal has; ``calls`` keeps code that may raise anything or
never return apart from the node, and ``fit`` looks at what it gives; ``sift`` parts rows from *dead
letters*, which ``dead_letters`` keeps; ``file`` is the engine's own kind, with ``listing``,
``lines`` and ``csv_rows`` beside it.
"""
