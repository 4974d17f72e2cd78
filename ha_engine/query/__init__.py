"""The query process, which runs Spark, and what both processes know about the application.

    application   the application file as frozen values; the node imports it too, so it has no Spark
    columns       the column types of a stream, as SQL and as Arrow types
    application_file, file_words, sink_sections, plugin_sections
                  how that file is read: the whole, what its parts share, its sinks and sources
    application_versions  the file as loaded, compared with the version that the node runs
    session       the one Spark session with its settings; the check for Java
    class_archive Spark's loaded classes, from which Java starts faster
    spark_home    a home for Spark whose workers import compiled PySpark
    link          calls over the node's local socket, retried while the node is away
    sql_words     which streams a SQL text names, found without Spark
    source        the ``ha_journal`` data source, as Spark knows it
    source_reader what it reads: committed records up to the next mark
    marks         the node's marks, as a source's planning worker requests them
    record_rows   rows of records in the form that Spark reads
    offsets       which mark a batch of Spark's belongs to, and whether all its sources agree
    outbox_writer one batch to the outbox, its admission, its digest
    plan          the application's queries as Spark data frames
    determinism   refuses what would give another result on another node
    check         what ``app check`` reports about an application
    failure       a Spark error in one line
    checkpoints   one directory per query, set aside when its stamp differs
    checkpoint_files  which files hold the state after a batch, and the one way to copy them
    runner        starts, watches and stops the streaming queries
    reports       digests and progress to the node, off the batch's critical path
    progress      Spark's progress of a batch
    weight        the share of the processor: more while Spark starts
    parent_watchdog  ends a process whose parent or driver is gone
    jvm           Spark's JVM: whether it lives, and why it ended
    host          whether the kernel killed a process for lack of memory
    runtime       the versions that compute a batch; two nodes compare them
    start_report  reports to the supervisor: the step of the start, the reason of the end
    settings      what the supervisor passes to the process
    process       runs what the node commands
    main          the entry point: starts Spark, then ``process``

The node alone decides which batch comes next and what a failure means.
"""
