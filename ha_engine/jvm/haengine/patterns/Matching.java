package haengine.patterns;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.analysis.SimpleAnalyzer$;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.streaming.GroupState;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/** Matches the events of one key in a batch, for Spark. */
final class Matching implements FlatMapGroupsWithStateFunction<Row, Row, byte[], Row> {
  private static final long serialVersionUID = 1L;
  private static final long MICROS_PER_MILLI = 1_000;
  private static final int FIRST_EVENT = 6;

  private final Automaton automaton;
  private transient ThreadLocal<Compiled> compiled;

  Matching(Automaton automaton) {
    this.automaton = automaton;
  }

  /** The parts that Spark compiles, for one thread. */
  private static final class Compiled {
    private final Matcher matcher;
    private final List<ExpressionEncoder.Serializer<Row>> events;
    private final ExpressionEncoder.Deserializer<Row> memory;

    Compiled(Automaton automaton) {
      matcher = new Matcher(automaton);
      events =
          Arrays.stream(automaton.events())
              .map(schema -> ExpressionEncoder.apply(schema).createSerializer())
              .toList();
      memory = deserializer(automaton.memory());
    }

    private static ExpressionEncoder.Deserializer<Row> deserializer(StructType schema) {
      ExpressionEncoder<Row> encoder = ExpressionEncoder.apply(schema);
      List<Attribute> columns =
          List.copyOf(CollectionConverters.asJava(DataTypeUtils.toAttributes(schema)));
      return encoder
          .resolveAndBind(
              CollectionConverters.asScala(columns).toSeq(), SimpleAnalyzer$.MODULE$)
          .createDeserializer();
    }
  }

  @Override
  public Iterator<Row> call(Row key, Iterator<Row> rows, GroupState<byte[]> group) {
    if (compiled == null) {
      compiled = ThreadLocal.withInitial(() -> new Compiled(automaton));
    }
    Compiled ready = compiled.get();
    KeyState state = group.exists() ? KeyState.of(group.get(), automaton) : new KeyState();
    boolean sorted = true;
    while (rows.hasNext()) {
      state.waiting.add(event(rows.next(), ready));
      sorted = false;
    }
    if (!sorted) {
      state.waiting.sort(null);
    }
    List<Row> found = new ArrayList<>();
    long watermark = group.getCurrentWatermarkMs();
    ready.matcher.advance(
        key,
        state,
        watermark * MICROS_PER_MILLI,
        (run, match) -> found.add(row(key, run, match, ready)));
    keep(key, group, state, ready.matcher.next(state));
    return found.iterator();
  }

  private Event event(Row row, Compiled ready) {
    int stream = row.getInt(4);
    Row columns = row.getStruct(FIRST_EVENT + stream);
    UnsafeRow packed =
        automaton.events()[stream].isEmpty()
            ? new UnsafeRow(0)
            : (UnsafeRow) ready.events.get(stream).apply(columns).copy();
    return new Event(row.getLong(2), row.getString(3), stream, row.getLong(5), packed);
  }

  private Row row(Row key, Run run, Way match, Compiled ready) {
    Row slots = ready.memory.apply(match.memory());
    int columns = automaton.keyColumns();
    Object[] values = new Object[columns + 2 + slots.length()];
    for (int at = 0; at < columns; at++) {
      values[at] = key.get(at);
    }
    values[columns] = DateTimeUtils.toJavaTimestamp(run.firstMicros());
    values[columns + 1] = DateTimeUtils.toJavaTimestamp(match.endsAt());
    for (int at = 0; at < slots.length(); at++) {
      values[columns + 2 + at] = slots.get(at);
    }
    return RowFactory.create(values);
  }

  private void keep(Row key, GroupState<byte[]> group, KeyState state, long next) {
    if (state.isEmpty()) {
      if (group.exists()) {
        group.remove();
      }
      return;
    }
    byte[] bytes = state.bytes(automaton.layout());
    if (bytes.length > automaton.keyBytesMax()) {
      throw new PatternStateTooLarge(key, bytes.length, state, automaton.keyBytesMax());
    }
    group.update(bytes);
    // Spark calls again once the watermark is later than the time, which is rounded up and must be
    // after 1970.
    group.setTimeoutTimestamp(Math.max(1, -Math.floorDiv(-next, MICROS_PER_MILLI) - 1));
  }
}
