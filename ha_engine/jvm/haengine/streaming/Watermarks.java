package haengine.streaming;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker;
import org.apache.spark.sql.streaming.StreamingQuery;
import scala.Option;
import scala.collection.mutable.Map;

/**
 * The watermark of each stream of a query, in the order of the streams in the query's plan.
 *
 * <p>Spark's checkpoint has only the watermark of the whole query. A watermark here is in
 * milliseconds since 1970, or null as long as the stream had no event. Call the methods in the
 * query's thread, while a batch runs.
 */
public final class Watermarks {

  private final MicroBatchExecution query;
  private final List<UUID> operators;

  public Watermarks(StreamingQuery started) {
    query = (MicroBatchExecution) ((StreamingQueryWrapper) started).streamingQuery();
    Set<UUID> found = new LinkedHashSet<>();
    collect(query.logicalPlan(), found);
    operators = List.copyOf(found);
  }

  private static void collect(LogicalPlan plan, Set<UUID> found) {
    if (plan instanceof EventTimeWatermark watermark) {
      found.add(watermark.nodeId());
    }
    for (int child = 0; child < plan.children().size(); child++) {
      collect(plan.children().apply(child), found);
    }
  }

  /** Returns the watermarks after the running batch, whose rows have been computed. */
  public List<Long> after() {
    WatermarkTracker tracker = query.watermarkTracker();
    // Spark makes the same call at the end of the batch, which then changes nothing.
    tracker.updateWatermark(query.lastExecution().executedPlan());
    List<Long> watermarks = new ArrayList<>();
    for (UUID operator : operators) {
      Option<Object> watermark = tracker.watermarkMap().apply(operator);
      watermarks.add(watermark.isDefined() ? (Long) watermark.get() : null);
    }
    return watermarks;
  }

  /** Sets the watermarks that a batch before the query's start had. The list may be empty. */
  public void restore(List<? extends Number> watermarks) throws ReflectiveOperationException {
    Map<UUID, Option<Object>> current = current(query.watermarkTracker());
    for (int at = 0; at < watermarks.size(); at++) {
      Number watermark = watermarks.get(at);
      if (watermark != null) {
        current.update(operators.get(at), Option.apply(watermark.longValue()));
      }
    }
  }

  @SuppressWarnings("unchecked")
  private static Map<UUID, Option<Object>> current(WatermarkTracker tracker)
      throws ReflectiveOperationException {
    // Spark only gives a copy of this map.
    Method map = WatermarkTracker.class.getDeclaredMethod("operatorToWatermarkMap");
    map.setAccessible(true);
    return (Map<UUID, Option<Object>>) map.invoke(tracker);
  }
}
