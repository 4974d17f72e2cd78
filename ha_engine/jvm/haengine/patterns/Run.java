package haengine.patterns;

import java.util.List;

/**
 * The ways from one first event, the preferred one first. If a way has ended, it is the last one.
 * If the first way has ended, it is the match.
 *
 * <p>{@code first} is the number of the first event, and {@code deadline} the last time of an event.
 */
record Run(long first, long firstMicros, long deadline, List<Way> ways) {
  boolean isDecided() {
    return !ways.isEmpty() && ways.get(0).hasEnded();
  }
}
