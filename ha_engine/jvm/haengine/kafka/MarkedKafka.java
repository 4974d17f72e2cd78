package haengine.kafka;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's Kafka source, whose batches end where the node says.
 *
 * <p>The options are those of Spark's source, without the ones that choose offsets. The options
 * that begin with {@code mark.} say which marks, see {@link Marks}.
 */
public final class MarkedKafka implements TableProvider {
  private static final String KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider";
  private static final Set<String> DECIDED =
      Set.of(
          "startingoffsets",
          "startingtimestamp",
          "startingoffsetsbytimestamp",
          "startingoffsetsbytimestampstrategy",
          "minoffsetspertrigger",
          "maxoffsetspertrigger",
          "maxtriggerdelay",
          "failondataloss",
          "kafka.isolation.level");

  /**
   * Spark's readers ask the broker twice for the range of offsets after each poll. With Kafka's
   * default of 500 records a poll, a large batch takes half as long again.
   */
  private static final Map<String, String> DEFAULTS =
      Map.of(
          "kafka.max.poll.records", "20000",
          "kafka.max.partition.fetch.bytes", String.valueOf(4 << 20));

  private final TableProvider kafka;

  /** Spark may load this class by another loader than its connector; the thread's finds both. */
  public MarkedKafka() throws ReflectiveOperationException {
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    Class<?> found = Class.forName(KAFKA, true, loader);
    kafka = (TableProvider) found.getConstructor().newInstance();
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return kafka.inferSchema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] parts, Map<String, String> properties) {
    return new MarkedTable((SupportsRead) kafka.getTable(schema, parts, properties));
  }

  private record MarkedTable(SupportsRead kafka) implements SupportsRead {
    @Override
    public String name() {
      return "MarkedKafka";
    }

    @Override
    @SuppressWarnings("deprecation") // Spark's source has nothing else
    public StructType schema() {
      return kafka.schema();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      Marks marks = new Marks(options);
      Scan scan = kafka.newScanBuilder(decided(options)).build();
      return () -> new MarkedScan(scan, marks);
    }
  }

  private static CaseInsensitiveStringMap decided(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<>(DEFAULTS);
    all.keySet().removeIf(options::containsKey);
    all.putAll(options.asCaseSensitiveMap());
    for (String name : options.keySet()) {
      if (DECIDED.contains(name)) {
        throw new IllegalArgumentException("the marks decide what is read: remove " + name);
      }
    }
    all.put("failOnDataLoss", "true");
    all.put("kafka.isolation.level", "read_committed");
    return new CaseInsensitiveStringMap(all);
  }

  private record MarkedScan(Scan kafka, Marks marks) implements Scan {
    @Override
    public StructType readSchema() {
      return kafka.readSchema();
    }

    @Override
    public String description() {
      return "MarkedKafka";
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new MarkedStream(kafka.toMicroBatchStream(checkpoint), marks);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return kafka.supportedCustomMetrics();
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
      return kafka.columnarSupportMode();
    }
  }
}
