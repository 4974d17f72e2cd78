"""The query process, which runs Spark, and what it shares with the node process.

``application`` has the user's application as immutable values, and does not import Spark.
``columns`` has the column types of a stream, as SQL and as Arrow types.
``application_file`` reads the application file.
``composition`` joins several applications to one, in the directories that ``layout`` names.
``file_words``, ``sink_sections``, ``aggregation_section`` and ``plugin_sections`` read parts of an
application file.
``application_versions`` compares the loaded application file with the version that the node runs.
``session`` starts the one Spark session with its settings, and checks for Java.
``class_archive`` stores Spark's loaded classes, so that Java starts faster.
``spark_home`` makes a Spark home whose workers import compiled PySpark modules.
``spark_logs`` keeps errors out of the log that the engine reports itself.
``yarn`` has what Spark needs on YARN besides.
``kubernetes`` has what Spark needs on Kubernetes, and deletes the pods of former drivers.
``executor_pod`` runs an executor in its pod on Kubernetes.
``link`` calls the node process over a local socket, and retries while it is down.
``sql_words`` finds which streams a SQL text names, without Spark.
``source`` has the ``ha_journal`` data source, as Spark knows it.
``source_reader`` reads committed records up to the next mark, for the data source.
``marks`` requests the node's marks for the data source.
``range_endpoints`` has the addresses of the nodes from which workers on other hosts read.
``range_reader`` reads a range of the journal from these nodes.
``kafka_marks`` answers Spark's Kafka source, which runs in the JVM, like ``marks``.
``kafka_stream`` makes the frame of a stream whose events stay in Kafka.
``record_rows`` converts the rows of records to the form that Spark reads.
``offsets`` finds the mark of a Spark batch, and whether all sources of the batch agree on it.
``outbox_writer`` writes a batch to the outbox and asks the node process to admit it.
``bucket_writer`` lets Spark's tasks write a batch to the query's sink.
``patterns`` finds sequences of events.
``state_limit`` bounds the keys of the patterns in Spark's state.
``plan`` turns the application's queries into Spark data frames.
``determinism`` refuses queries whose result would differ between nodes.
``check`` makes the report of ``app check`` about an application.
``failure`` describes a Spark error in one line.
``checkpoints`` has one directory per query, which it sets aside when its stamp differs.
``checkpoint_files`` finds and copies the files that hold the state after a batch.
``object_checkpoints`` has the checkpoints of queries on object storage.
``object_path`` reads the objects of a checkpoint like files in directories.
``state_partitions`` changes the number of partitions of a state between two batches.
``skew`` finds how unevenly the rows are divided among these partitions.
``watermarks`` keeps the watermarks of several streams over a restart.
``runner`` starts, watches and stops the streaming queries.
``reports`` sends digests and progress to the node process, outside a batch's critical path.
``progress`` converts Spark's progress of a batch.
``weight`` sets the share of CPU time, which is higher while Spark starts.
``parent_watchdog`` ends a process whose parent or driver has ended.
``jvm`` tells whether Spark's JVM lives, and why it ended.
``host`` tells whether the kernel killed a process for lack of memory.
``runtime`` has the versions of the software that computes a batch, which nodes compare.
``start_report`` reports the steps of the start and the reason of the end to the supervisor.
``worker`` is the program of Spark's Python workers, which connects before it imports PySpark.
``settings`` parses what the supervisor passes to the query process.
``process`` runs the commands of the node process.
``main`` is the entry point, which starts Spark and then ``process``.

The node process alone decides which batch comes next and what a failure means.
"""
