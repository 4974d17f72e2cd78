"""Sources that the active reads. The rows of a source pass the gate as the events of a producer do.

    a plug-in -> calls -> puller -> validate -> the intake and the gate

puller        reads one source, from the offset in the journal
calls         isolates the node from a plug-in, which may raise anything or never return
coerce        copies what a plug-in returns into values of the declared types
messages      decodes the messages of a source, and separates events from dead letters
validate      separates events from *dead letters*
dead_letters  writes the dead letters to files
file          the engine's own kind of source, with ``listing``
"""
