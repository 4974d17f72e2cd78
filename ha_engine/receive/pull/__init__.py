"""Sources that the active pulls, each into the gate as if it were a producer.

    a plug-in -> calls -> puller -> sift -> the intake and the gate

``receivers`` starts the sources when the gate opens and stops them when it closes. ``puller`` reads
one source, from the offset in the journal. A plug-in may raise anything or never return: ``calls``
isolates the node from it, and ``fit`` checks what it returns. ``sift`` separates rows from *dead
letters*, which ``dead_letters`` keeps. ``file`` is the engine's own kind of source, with
``listing``, ``lines`` and ``csv_rows``.
"""
