package haengine.patterns;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.api.java.Optional;
import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.streaming.GroupStateTimeout;
import org.apache.spark.sql.streaming.TestGroupState;
import scala.jdk.javaapi.CollectionConverters;

/** Matches events in batches without a streaming query, for tests of many patterns. */
public final class Drive {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Drive() {}

  /**
   * The matches, one a line, as JSON arrays of the columns.
   *
   * <p>The batch of an event is the last number of its id. {@code watermarks} are those of the
   * batches in seconds. As in Spark, a key without events in a batch is called if its timeout
   * is before the watermark.
   */
  public static String run(PatternPlan plan, List<Integer> watermarks) throws Exception {
    Map<Integer, Map<Row, List<Row>>> batches = new HashMap<>();
    for (Row event : plan.events().collectAsList()) {
      String id = event.getString(3);
      int batch = Integer.parseInt(id.substring(id.lastIndexOf('-') + 1));
      batches
          .computeIfAbsent(batch, number -> new LinkedHashMap<>())
          .computeIfAbsent(event.getStruct(0), key -> new ArrayList<>())
          .add(event);
    }
    FlatMapGroupsWithStateFunction<Row, Row, byte[], Row> matching = plan.matching();
    Map<Row, byte[]> states = new LinkedHashMap<>();
    Map<Row, Long> timeouts = new HashMap<>();
    StringBuilder found = new StringBuilder();
    for (int batch = 0; batch < watermarks.size(); batch++) {
      long watermark = watermarks.get(batch) * 1000L;
      Map<Row, List<Row>> events = batches.getOrDefault(batch, Map.of());
      List<Row> keys = new ArrayList<>(events.keySet());
      for (Row key : states.keySet()) {
        if (!events.containsKey(key) && timeouts.get(key) < watermark) {
          keys.add(key);
        }
      }
      for (Row key : keys) {
        TestGroupState<byte[]> state =
            TestGroupState.create(
                Optional.ofNullable(states.get(key)),
                GroupStateTimeout.EventTimeTimeout(),
                0L,
                Optional.of(watermark),
                !events.containsKey(key));
        Iterator<Row> rows = events.getOrDefault(key, List.of()).iterator();
        Iterator<Row> matches = matching.call(key, rows, state);
        while (matches.hasNext()) {
          found.append(JSON.writeValueAsString(plain(matches.next()))).append('\n');
        }
        if (state.exists()) {
          states.put(key, state.get());
          timeouts.put(key, (Long) state.getTimeoutTimestampMs().get());
        } else {
          states.remove(key);
        }
      }
    }
    return found.toString();
  }

  /** A value in a form that JSON has, with times in microseconds. */
  private static Object plain(Object value) {
    if (value instanceof Row row) {
      return IntStream.range(0, row.length()).mapToObj(at -> plain(row.get(at))).toList();
    }
    if (value instanceof Timestamp time) {
      return DateTimeUtils.fromJavaTimestamp(time);
    }
    if (value instanceof scala.collection.Seq<?> items) {
      return CollectionConverters.asJava(items).stream().map(Drive::plain).toList();
    }
    return value;
  }
}
