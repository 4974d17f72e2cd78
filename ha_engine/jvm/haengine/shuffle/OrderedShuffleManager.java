package haengine.shuffle;

import java.util.ArrayDeque;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.TreeMap;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.sort.SortShuffleManager;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManagerId;
import scala.Product2;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * Spark's shuffle, whose tasks read the blocks of the map tasks in the order of these tasks.
 *
 * <p>Spark reads the blocks in the order in which they arrive from other executors. A sum of
 * doubles, the first row of a group and a list then differ from run to run, and two nodes that run
 * the same batch get different rows. With blocks in one order, each task gets the same rows in the
 * same order in each run.
 */
public final class OrderedShuffleManager extends SortShuffleManager {

  private static final int BLOCKS_AHEAD = 64;

  /** So many bytes of blocks are on their way to a task at once, as in Spark's own shuffle. */
  private final long bytesAhead;

  public OrderedShuffleManager(SparkConf conf) {
    super(conf);
    bytesAhead = conf.getSizeAsBytes("spark.reducer.maxSizeInFlight", "48m");
  }

  @Override
  public <K, C> ShuffleReader<K, C> getReader(
      ShuffleHandle handle,
      int startMapIndex,
      int endMapIndex,
      int startPartition,
      int endPartition,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    TreeMap<Integer, Long> sizes =
        sizes(handle.shuffleId(), startMapIndex, endMapIndex, startPartition, endPartition);
    return () ->
        new InOrder<K, C>(sizes, bytesAhead) {
          @Override
          Iterator<Product2<K, C>> read(int mapIndex) {
            return OrderedShuffleManager.super
                .<K, C>getReader(
                    handle,
                    mapIndex,
                    mapIndex + 1,
                    startPartition,
                    endPartition,
                    context,
                    metrics)
                .read();
          }
        };
  }

  /** The bytes that each map task has for these partitions, by its index. */
  private static TreeMap<Integer, Long> sizes(
      int shuffleId, int startMapIndex, int endMapIndex, int startPartition, int endPartition) {
    Iterator<Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>>> places =
        SparkEnv.get()
            .mapOutputTracker()
            .getMapSizesByExecutorId(
                shuffleId, startMapIndex, endMapIndex, startPartition, endPartition);
    TreeMap<Integer, Long> sizes = new TreeMap<>();
    while (places.hasNext()) {
      Iterator<Tuple3<BlockId, Object, Object>> blocks = places.next()._2().iterator();
      while (blocks.hasNext()) {
        Tuple3<BlockId, Object, Object> block = blocks.next();
        sizes.merge((Integer) block._3(), (Long) block._2(), Long::sum);
      }
    }
    return sizes;
  }

  /** The rows of one map task after those of another, with the next ones already on their way. */
  private abstract static class InOrder<K, C> extends AbstractIterator<Product2<K, C>> {
    private final TreeMap<Integer, Long> waiting;
    private final Queue<Tuple2<Long, Iterator<Product2<K, C>>>> opened = new ArrayDeque<>();
    private final long bytesAhead;
    private long bytes;

    InOrder(TreeMap<Integer, Long> sizes, long bytesAhead) {
      waiting = sizes;
      this.bytesAhead = bytesAhead;
      open();
    }

    /** Request the rows of a map task. */
    abstract Iterator<Product2<K, C>> read(int mapIndex);

    private void open() {
      while (!waiting.isEmpty() && (opened.isEmpty() || hasRoom(waiting.firstEntry().getValue()))) {
        var next = waiting.pollFirstEntry();
        opened.add(new Tuple2<>(next.getValue(), read(next.getKey())));
        bytes += next.getValue();
      }
    }

    private boolean hasRoom(long more) {
      return opened.size() < BLOCKS_AHEAD && bytes + more <= bytesAhead;
    }

    @Override
    public boolean hasNext() {
      while (!opened.isEmpty() && !opened.peek()._2().hasNext()) {
        bytes -= opened.remove()._1();
        open();
      }
      return !opened.isEmpty();
    }

    @Override
    public Product2<K, C> next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return opened.element()._2().next();
    }
  }
}
