"""Failures that Spark reports, with the texts of Spark 4.3 and its Kafka connector 4.2."""

from __future__ import annotations

import pytest

from ha_engine.query.failure import is_of_the_host, one_line


class Cause:
    """A Java exception without a cause, as py4j shows it."""

    def __init__(self, name: str, message: str) -> None:
        self._name, self._message = name, message

    def getMessage(self) -> str:  # noqa: N802
        return self._message

    def getClass(self) -> Cause:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self._name

    def getCause(self) -> None:  # noqa: N802
        return None


class SparkError(Exception):
    """An error of PySpark with that Java exception."""

    def __init__(self, name: str, message: str) -> None:
        self.java_exception = Cause(name, message)


ABORTED = "Job aborted due to stage failure: "
LOST = (
    f"{ABORTED}Task 0 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.11 executor 3): "
)
PROGRAM = '"/opt/ha-engine/lib/python3.11/site-packages/ha_engine/query/python_worker"'
STACK = '\n  File "worker.py", line 1, in main\n'
NO_BUCKET = (
    "`s3a://events/states': getFileStatus on s3a://events/states: "
    "software.amazon.awssdk.services.s3.model.NoSuchBucketException: The specified bucket does not "
    "exist (Service: S3, Status Code: 404, Request ID: one) (SDK Attempt Count: 1):NoSuchBucket"
)
OF_THE_HOST = {
    "executors": (
        "SparkException",
        f"{LOST}ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
        "Reason: Command exited with code 137\nDriver stacktrace:",
    ),
    "blocks": (
        "SparkException",
        f"{ABORTED}ShuffleMapStage 1 (start at NativeMethodAccessorImpl.java:0) has failed the "
        "maximum allowable number of times: 4. Most recent failure reason: "
        "org.apache.spark.shuffle.FetchFailedException\n\tat org.apache.spark.errors",
    ),
    "no engine on a worker": (
        "IOException",
        f"Cannot run program {PROGRAM}: error=2, No such file or directory",
    ),
    "other release on a worker": (
        "PythonException",
        f"Traceback (most recent call last):{STACK}"
        "ha_engine.errors.RangeRefused: the nodes do not send the records",
    ),
    "brokers that do not answer the driver": (
        "TimeoutException",
        "Timed out waiting for a node assignment. Call: listNodes",
    ),
    "brokers that do not answer a task": (
        "TimeoutException",
        "Timeout of 60000ms expired before the position for partition orders-0 could be determined",
    ),
    "brokers that do not answer a task of a cluster": (
        "SparkException",
        f"{LOST}org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before "
        "the position for partition orders-0 could be determined\n\nDriver stacktrace:",
    ),
    "a record that does not come": (
        "TimeoutException",
        "Cannot fetch record for offset 7 in 120000 milliseconds",
    ),
    "object storage without the bucket": ("UnknownStoreException", NO_BUCKET),
    "object storage that refuses a task": (
        "SparkException",
        f"{LOST}org.apache.hadoop.fs.s3a.UnknownStoreException: {NO_BUCKET}",
    ),
    "object storage that a task needs for its state": (
        "SparkException",
        f"{LOST}org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error "
        f"occurred\n\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\nCaused by: "
        f"org.apache.hadoop.fs.s3a.UnknownStoreException: {NO_BUCKET}\n\t... 5 more",
    ),
    "object storage that does not answer Hadoop": (
        "ConnectException",
        "Writing Object on ha/run/y: software.amazon.awssdk.core.exception.SdkClientException: "
        "Unable to execute HTTP request: Connect to 127.0.0.1:15990 [/127.0.0.1] failed: "
        "Connection refused (SDK Attempt Count: 2)",
    ),
    "object storage that does not answer": (
        "SdkClientException",
        "Unable to execute HTTP request: Connection refused (SDK Attempt Count: 6)",
    ),
    "credentials that the brokers refuse": (
        "SaslAuthenticationException",
        "Authentication failed during authentication due to invalid credentials",
    ),
}
RECORDS_LOST = """\
Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option \
failOnDataLoss to false.
Reason: Could not read records in offset [10, 20) for topic partition orders-0
with consumer group spark-kafka-source-3259e007-executor."""
OF_A_BATCH = {
    "memory": (
        "SparkException",
        f"{LOST}ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
        "Reason: Command exited with code 3\nDriver stacktrace:",
    ),
    "memory of a pod": (
        "SparkException",
        f"{LOST}ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
        "Reason: \nThe executor with id 3 exited with exit code 3(unexpected).\n\n\n\n"
        "The API gave the following brief reason: N/A\nDriver stacktrace:",
    ),
    "data about such a storage": (
        "SparkException",
        f"{LOST}java.lang.IllegalStateException: s3a://events is not the bucket",
    ),
    "data with such a text": (
        "SparkException",
        f"{LOST}java.lang.IllegalStateException: FetchFailed, ExecutorLostFailure (executor 3)",
    ),
    "records that Kafka deleted": ("KafkaIllegalStateException", RECORDS_LOST),
    "a function that waited in vain": ("TimeoutException", "no answer within 5 seconds"),
}


@pytest.mark.parametrize("case", OF_THE_HOST)
def test_no_batch_is_to_blame_for_a_part_of_the_cluster(case: str) -> None:
    assert is_of_the_host(SparkError(*OF_THE_HOST[case]))


@pytest.mark.parametrize("case", OF_A_BATCH)
def test_a_batch_is_to_blame_for_what_its_tasks_do(case: str) -> None:
    assert not is_of_the_host(SparkError(*OF_A_BATCH[case]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("KafkaIllegalStateException", RECORDS_LOST),
        (
            "SparkException",
            f"{LOST}org.apache.spark.sql.kafka010.KafkaIllegalStateException: {RECORDS_LOST}\n"
            "\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange",
        ),
    ],
)
def test_lost_records_of_kafka_are_named_with_what_to_do(name: str, message: str) -> None:
    reason = one_line(SparkError(name, message))
    assert reason.startswith(
        "Kafka no longer has records of this batch: Could not read records in offset [10, 20) for "
        "topic partition orders-0. If the other node has finished the batch, run 'ha-engine reinit'"
    )
    assert "failOnDataLoss" not in reason
