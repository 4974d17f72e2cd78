package haengine.patterns;

import org.apache.spark.sql.Row;

/** The state of one key of a pattern has more bytes than the query allows. */
final class PatternStateTooLarge extends RuntimeException {
  private static final long serialVersionUID = 1L;

  PatternStateTooLarge(Row key, long bytes, KeyState state, int bytesMax) {
    super(
        String.format(
            "the state of the key %s has %,d bytes, with %,d waiting events and rows of tables, and "
                + "%,d open matches; the limit is max_state_per_key, %,d bytes: raise it, shorten "
                + "within, or make the conditions of the first step stricter",
            key, bytes, state.waiting.size(), state.runs.size(), bytesMax));
  }
}
