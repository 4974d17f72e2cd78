package haengine.patterns;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.types.StructType;

/**
 * A pattern, ready to run: its states, and its expressions over an event and the slots.
 *
 * <p>{@code deciding} selects the slots of the memory that conditions depend on. The last {@code
 * lookups} slots of the history are rows of tables. Two automata with the same {@code layout} can
 * read each other's {@link KeyState}.
 */
record Automaton(
    State[] states,
    Step[] steps,
    StructType[] events,
    boolean[] tables,
    int lookups,
    StructType memory,
    StructType history,
    Expression[] initialMemory,
    Expression[] initialHistory,
    Expression[][] historyUpdates,
    Expression[] deciding,
    long within,
    int keyColumns,
    AfterMatch afterMatch,
    int afterStep,
    int keyBytesMax,
    int layout)
    implements Serializable {

  /** The first event that may begin a match after another match of the same key. */
  enum AfterMatch {
    NEXT,
    PAST_LAST,
    TO_FIRST,
    TO_LAST
  }

  /** A step that a state awaits. {@code absent} are steps whose events forbid to wait for it. */
  record Take(int step, int target, boolean adjacent, int[] absent) implements Serializable {}

  /**
   * What a way awaits: the steps in the order of preference, and last the end if it {@code ends}.
   *
   * <p>A way ends at once without steps in {@code endAbsent}. Otherwise it ends {@code endAfter}
   * microseconds after its last event, or with the time of the pattern if that is null.
   */
  record State(Take[] takes, boolean ends, int[] endAbsent, Long endAfter)
      implements Serializable {
    boolean endsAtOnce() {
      return ends && endAbsent.length == 0;
    }
  }

  /**
   * A step: the stream of its events, what depends on earlier events in its condition, or null, and
   * the slots after its event, or null if they do not change. With {@code updatesFirst} the
   * condition is about the slots after the event.
   */
  record Step(int stream, Expression condition, Expression[] updates, boolean updatesFirst)
      implements Serializable {}

  /** Whether a step needs values of the events before, which expire, besides rows of tables. */
  boolean remembers() {
    return history.length() > lookups;
  }
}
