package haengine.kafka;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * A stream of Spark's Kafka source that learns its offsets from the node.
 *
 * <p>Spark's stream plans the tasks, and its readers run in the executors. Executors load no class
 * of this package.
 */
final class MarkedStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final MicroBatchStream kafka;
  private final Marks marks;

  MarkedStream(MicroBatchStream kafka, Marks marks) {
    this.kafka = kafka;
    this.marks = marks;
  }

  /** The offsets where the query began. Spark asks again whenever it repeats its first batch. */
  @Override
  public Offset initialOffset() {
    return MarkOffset.of(marks.first(), kafka);
  }

  /**
   * The mark that follows {@code start}, once there is one; never {@code start}.
   *
   * <p>Spark asks the sources of a query one after the other. A source that gave up waiting and
   * answered {@code start} could disagree with the next source, for which the mark came in time.
   */
  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    MarkOffset before = (MarkOffset) start;
    MarkOffset next = MarkOffset.of(marks.after(before.mark()), kafka);
    if (next.mark() <= before.mark()) {
      throw new IllegalStateException(
          "the node answered mark " + next.mark() + ", which is not after " + before.mark());
    }
    return next;
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with the offset where the batch starts");
  }

  /** An offset in Spark's log, which is one of the journal where the stream had no topic yet. */
  @Override
  public Offset deserializeOffset(String json) {
    return MarkOffset.of(marks.complete(json), kafka);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    MarkOffset mark = (MarkOffset) end;
    if (marks.skipped(mark.mark())) {
      return new InputPartition[0];
    }
    return kafka.planInputPartitions(((MarkOffset) start).kafka(), mark.kafka());
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return kafka.createReaderFactory();
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    throw new UnsupportedOperationException("the marks say when a batch runs; use no trigger");
  }

  @Override
  public void commit(Offset end) {
    kafka.commit(((MarkOffset) end).kafka());
  }

  @Override
  public void stop() {
    kafka.stop();
  }

  @Override
  public String toString() {
    return "MarkedKafka[" + marks + "]";
  }
}
