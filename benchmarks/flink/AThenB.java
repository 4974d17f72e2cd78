import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Flink CEP's part of {@code benchmarks.flink_cep}: prints the events a second.
 *
 * <p>Arguments: events a key in a batch, batches, and the longest time of a match in seconds.
 */
public final class AThenB {
  private static final int ROWS = 200_000;
  private static final int WARMING = 2;

  private static volatile long begun;
  private static volatile long ended;

  public static final class Event {
    public long key;
    public long at;
    public int kind;
    public double amount;
  }

  /** An event as benchmarks.patterns makes it, with another hash. */
  private static Event event(long index, int perKey) {
    if (index == (long) WARMING * ROWS) {
      begun = System.nanoTime();
    }
    long batch = index / ROWS;
    long id = index % ROWS;
    Event event = new Event();
    long first = perKey == 1 ? batch * ROWS % (5L * ROWS) : 0;
    event.key = Math.floorMod(hash(id, 42), ROWS / perKey) + first;
    event.at = 1_700_000_000_000L + batch * 10_000 + id / 20;
    event.kind = Math.floorMod(hash(id, 7), 7);
    event.amount = Math.floorMod(hash(id, 9), 1_000);
    return event;
  }

  private static int hash(long id, int seed) {
    long mixed = (id + seed * 0x9E3779B97F4A7C15L) * 0xBF58476D1CE4E5B9L;
    mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
    return (int) (mixed ^ (mixed >>> 31));
  }

  public static void main(String[] arguments) throws Exception {
    int perKey = Integer.parseInt(arguments[0]);
    long count = Long.parseLong(arguments[1]) * ROWS;
    Duration within = Duration.ofSeconds(Long.parseLong(arguments[2]));
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
    environment.getConfig().enableObjectReuse();
    DataGeneratorSource<Event> source =
        new DataGeneratorSource<>(index -> event(index, perKey), count, Types.POJO(Event.class));
    WatermarkStrategy<Event> watermarks =
        WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(10))
            .withTimestampAssigner((event, time) -> event.at);
    Pattern<Event, ?> sought =
        Pattern.<Event>begin("a", AfterMatchSkipStrategy.noSkip())
            .where(SimpleCondition.of(event -> event.kind == 1))
            .followedBy("b")
            .where(
                new IterativeCondition<Event>() {
                  @Override
                  public boolean filter(Event event, Context<Event> earlier) throws Exception {
                    return event.kind == 2
                        && event.amount >= earlier.getEventsForPattern("a").iterator().next().amount;
                  }
                })
            .within(within);
    DataStream<Event> events =
        environment
            .fromSource(source, watermarks, "events")
            .filter(event -> event.kind == 1 || event.kind == 2);
    CEP.pattern(events.keyBy(event -> event.key), sought)
        .process(
            new PatternProcessFunction<Event, Long>() {
              @Override
              public void processMatch(
                  Map<String, List<Event>> match, Context context, Collector<Long> out) {
                out.collect(match.get("a").get(0).key);
              }
            })
        .map(new Ending())
        .sinkTo(new DiscardingSink<>());
    environment.execute();
    double seconds = (ended - begun) / 1e9;
    System.out.printf("%.0f%n", (count - (long) WARMING * ROWS) / seconds);
  }

  /** Notes when all matches have come. */
  private static final class Ending extends RichMapFunction<Long, Long> {
    @Override
    public Long map(Long key) {
      return key;
    }

    @Override
    public void close() {
      ended = System.nanoTime();
    }
  }
}
