package haengine.kafka;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * Mark n, as <code>{"mark":n,"sequence":s,"at":{"topic":{"0":123}}}</code> in Spark's log of offsets.
 *
 * <p>The number makes the offset of each mark another one, also if no partition grew, so that Spark
 * runs a batch for it. The sequence is that of the last record before the mark, as in an offset of
 * the journal, which is <code>{"mark":n,"sequence":s}</code>. Two offsets are equal if their JSON is.
 */
final class MarkOffset extends Offset {
  static final ObjectMapper JSON = new ObjectMapper();

  private final long mark;
  private final long sequence;
  private final Offset kafka;

  private MarkOffset(long mark, long sequence, Offset kafka) {
    this.mark = mark;
    this.sequence = sequence;
    this.kafka = kafka;
  }

  /** Parse an offset, whose partitions {@code stream} understands. */
  static MarkOffset of(String text, MicroBatchStream stream) {
    JsonNode json = parsed(text);
    if (!isMark(json) || !json.path("at").isObject()) {
      throw new IllegalStateException("no mark with its offsets: " + text);
    }
    Offset at = stream.deserializeOffset(json.get("at").toString());
    return new MarkOffset(json.get("mark").longValue(), json.get("sequence").longValue(), at);
  }

  static boolean isMark(JsonNode json) {
    return json.path("mark").isIntegralNumber() && json.path("sequence").isIntegralNumber();
  }

  static JsonNode parsed(String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("not JSON: " + text, error);
    }
  }

  long mark() {
    return mark;
  }

  Offset kafka() {
    return kafka;
  }

  @Override
  public String json() {
    return "{\"mark\":" + mark + ",\"sequence\":" + sequence + ",\"at\":" + kafka.json() + "}";
  }
}
