package haengine.patterns;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/**
 * A way through the pattern from the first event of a match.
 *
 * <p>{@code alive} has a bit for each step that the way's state awaits. {@code endsAt} is the time
 * when a way ends without a further event, or {@link #NEVER}. {@code last} is the number of the
 * way's last event, and {@code lastMicros} its time. {@code after} is the number of the event that
 * the pattern's AfterMatch names.
 */
record Way(
    int state, long alive, long endsAt, long last, long lastMicros, long after, UnsafeRow memory) {
  static final long NEVER = Long.MAX_VALUE;
  /** The state of a way that has reached the end of the pattern. */
  static final int ENDED = -1;

  boolean hasEnded() {
    return state == ENDED;
  }

  Way awaiting(long steps, long until) {
    return new Way(state, steps, until, last, lastMicros, after, memory);
  }

  Way ended(long at) {
    return new Way(ENDED, 0, at, last, lastMicros, after, memory);
  }
}
