package haengine.patterns;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.function.BiConsumer;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.Predicate;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Runs the automaton over the events of a key, in their order.
 *
 * <p>The module {@code ha_engine.query.patterns.pattern} says what a match is. One thread uses a
 * matcher, because the compiled expressions reuse their rows.
 */
final class Matcher {
  /** The bytes of a way besides its memory, roughly. */
  private static final int WAY_BYTES = 64;

  private final Automaton automaton;
  private final BasePredicate[] conditions;
  private final UnsafeProjection[] updates;
  private final UnsafeProjection[] histories;
  private final UnsafeProjection expired;
  private final UnsafeProjection deciding;
  private final UnsafeRow emptyMemory;
  private final UnsafeRow emptyHistory;
  private final JoinedRow slots = new JoinedRow();
  private final JoinedRow row = new JoinedRow();

  Matcher(Automaton automaton) {
    this.automaton = automaton;
    int steps = automaton.steps().length;
    conditions = new BasePredicate[steps];
    updates = new UnsafeProjection[steps];
    for (int step = 0; step < steps; step++) {
      Automaton.Step one = automaton.steps()[step];
      conditions[step] = one.condition() == null ? null : Predicate.create(one.condition());
      updates[step] = one.updates() == null ? null : projection(one.updates());
    }
    histories =
        Arrays.stream(automaton.historyUpdates())
            .map(Matcher::projection)
            .toArray(UnsafeProjection[]::new);
    expired = projection(expired(automaton));
    deciding = projection(automaton.deciding());
    emptyMemory = projection(automaton.initialMemory()).apply(InternalRow.empty()).copy();
    emptyHistory = projection(automaton.initialHistory()).apply(InternalRow.empty()).copy();
  }

  /** The history without the events before, which still has the rows of tables. */
  private static Expression[] expired(Automaton automaton) {
    Expression[] slots = automaton.initialHistory().clone();
    for (int slot = slots.length - automaton.lookups(); slot < slots.length; slot++) {
      slots[slot] = new BoundReference(slot, automaton.history().fields()[slot].dataType(), true);
    }
    return slots;
  }

  private static UnsafeProjection projection(Expression[] expressions) {
    return UnsafeProjection.create(
        CollectionConverters.asScala(Arrays.asList(expressions)).toSeq());
  }

  /** Match the waiting events up to {@code watermark}, after which no event at that time comes. */
  void advance(Row key, KeyState state, long watermark, BiConsumer<Run, Way> found) {
    Iterator<Event> waiting = state.waiting.iterator();
    while (waiting.hasNext()) {
      Event event = waiting.next();
      if (event.micros() > watermark) {
        break;
      }
      waiting.remove();
      pass(state, event.micros() - 1, found);
      take(state, event);
      requireRoom(key, state);
      release(state, found);
    }
    pass(state, watermark, found);
  }

  /** The time of the next change without a further event, or {@link Way#NEVER}. */
  long next(KeyState state) {
    long next = state.waiting.isEmpty() ? Way.NEVER : state.waiting.get(0).micros();
    for (Run run : state.runs) {
      for (Way way : run.ways()) {
        if (way.alive() != 0) {
          next = Math.min(next, run.deadline());
        }
        if (!way.hasEnded()) {
          next = Math.min(next, way.endsAt());
        }
      }
    }
    return state.lastMicros == KeyState.NEVER
        ? next
        : Math.min(next, state.lastMicros + automaton.within());
  }

  // -- time --------------------------------------------------------------------------------------

  /** Let the time pass: no further event is at {@code now} or before. */
  private void pass(KeyState state, long now, BiConsumer<Run, Way> found) {
    boolean changed = false;
    for (int at = 0; at < state.runs.size(); at++) {
      Run run = state.runs.get(at);
      if (run.isDecided()) {
        continue;
      }
      List<Way> ways = new ArrayList<>(run.ways().size());
      for (Way way : run.ways()) {
        Way later = later(way, run.deadline(), now);
        if (later != null) {
          ways.add(later);
        }
        if (later != null && later.hasEnded()) {
          break;
        }
      }
      if (!ways.equals(run.ways())) {
        state.runs.set(at, new Run(run.first(), run.firstMicros(), run.deadline(), ways));
        changed = true;
      }
    }
    if (changed) {
      release(state, found);
    }
    if (state.lastMicros != KeyState.NEVER && state.lastMicros + automaton.within() <= now) {
      UnsafeRow left = expired.apply(state.history);
      state.history = left.equals(emptyHistory) ? null : left.copy();
      state.lastMicros = KeyState.NEVER;
    }
  }

  private static Way later(Way way, long deadline, long now) {
    if (way.hasEnded()) {
      return way;
    }
    if (way.endsAt() <= now) {
      return way.ended(way.endsAt());
    }
    if (deadline > now) {
      return way;
    }
    return way.endsAt() == Way.NEVER ? null : way.awaiting(0, way.endsAt());
  }

  // -- one event ---------------------------------------------------------------------------------

  private void take(KeyState state, Event event) {
    UnsafeRow history = state.history == null ? emptyHistory : state.history;
    if (automaton.tables()[event.stream()]) {
      state.history = remembered(event, history);
      return;
    }
    long number = state.events++;
    for (int at = 0; at < state.runs.size(); at++) {
      Run run = state.runs.get(at);
      if (run.isDecided()) {
        continue;
      }
      List<Way> ways = new ArrayList<>();
      for (Way way : run.ways()) {
        if (way.hasEnded()) {
          ways.add(way);
        } else {
          after(way, event, number, history, run.deadline(), ways);
        }
        if (!ways.isEmpty() && ways.get(ways.size() - 1).hasEnded()) {
          break;
        }
      }
      state.runs.set(at, new Run(run.first(), run.firstMicros(), run.deadline(), distinct(ways)));
    }
    state.runs.removeIf(run -> run.ways().isEmpty());
    begin(state, event, number, history);
    if (automaton.remembers()) {
      state.history = remembered(event, history);
      state.lastMicros = event.micros();
    }
  }

  private UnsafeRow remembered(Event event, UnsafeRow history) {
    return histories[event.stream()].apply(joined(event.row(), emptyMemory, history)).copy();
  }

  /** Fail before the ways of a key use up the memory, since each event may double them. */
  private void requireRoom(Row key, KeyState state) {
    long bytes = 0;
    for (Run run : state.runs) {
      for (Way way : run.ways()) {
        bytes += WAY_BYTES + way.memory().getSizeInBytes();
      }
    }
    if (bytes > automaton.keyBytesMax()) {
      throw new PatternStateTooLarge(key, bytes, state, automaton.keyBytesMax());
    }
  }

  /** Begin a run with the event, if a step accepts it. */
  private void begin(KeyState state, Event event, long number, UnsafeRow history) {
    Automaton.State first = automaton.states()[0];
    Way nothing = new Way(0, all(first), Way.NEVER, -1, event.micros(), -1, emptyMemory);
    long deadline = event.micros() + automaton.within();
    List<Way> ways = new ArrayList<>();
    for (int at = 0; at < first.takes().length; at++) {
      Automaton.Take take = first.takes()[at];
      UnsafeRow memory = accepted(take.step(), event, emptyMemory, history);
      if (memory != null) {
        arrive(nothing, take, memory, event, number, deadline, ways);
      }
      if (!ways.isEmpty() && ways.get(ways.size() - 1).hasEnded()) {
        break;
      }
    }
    if (!ways.isEmpty()) {
      state.runs.add(new Run(number, event.micros(), deadline, distinct(ways)));
    }
  }

  /** Add the ways that a way becomes by an event: those that take it, or the one that skips it. */
  private void after(
      Way way, Event event, long number, UnsafeRow history, long deadline, List<Way> ways) {
    Automaton.State state = automaton.states()[way.state()];
    boolean taken = false;
    for (int at = 0; at < state.takes().length; at++) {
      Automaton.Take take = state.takes()[at];
      if ((way.alive() >> at & 1) == 0) {
        continue;
      }
      UnsafeRow memory = accepted(take.step(), event, way.memory(), history);
      if (memory == null) {
        continue;
      }
      taken = true;
      arrive(way, take, memory, event, number, deadline, ways);
      if (ways.get(ways.size() - 1).hasEnded()) {
        return;
      }
    }
    if (!taken) {
      skip(way, state, event, history, ways);
    }
  }

  private void skip(
      Way way, Automaton.State state, Event event, UnsafeRow history, List<Way> ways) {
    long alive = way.alive();
    for (int at = 0; at < state.takes().length; at++) {
      Automaton.Take take = state.takes()[at];
      if (take.adjacent() || acceptsAny(take.absent(), event, way.memory(), history)) {
        alive &= ~(1L << at);
      }
    }
    long endsAt = way.endsAt();
    if (endsAt != Way.NEVER && acceptsAny(state.endAbsent(), event, way.memory(), history)) {
      endsAt = Way.NEVER;
    }
    if (alive != 0 || endsAt != Way.NEVER) {
      ways.add(way.awaiting(alive, endsAt));
    }
  }

  /** Add the way that has taken the event, and its end if the pattern may end here. */
  private void arrive(
      Way way,
      Automaton.Take take,
      UnsafeRow memory,
      Event event,
      long number,
      long deadline,
      List<Way> ways) {
    Automaton.State state = automaton.states()[take.target()];
    long endsAt = Way.NEVER;
    if (state.ends() && !state.endsAtOnce()) {
      endsAt = state.endAfter() == null ? deadline : event.micros() + state.endAfter();
    }
    long after = way.after();
    if (automaton.afterStep() == take.step()
        && (automaton.afterMatch() == Automaton.AfterMatch.TO_LAST || after < 0)) {
      after = number;
    }
    Way next =
        new Way(take.target(), all(state), endsAt, number, event.micros(), after, memory);
    if (next.alive() != 0 || endsAt != Way.NEVER) {
      ways.add(next);
    }
    if (state.endsAtOnce()) {
      ways.add(next.ended(event.micros()));
    }
  }

  private static long all(Automaton.State state) {
    int steps = state.takes().length;
    return steps == Long.SIZE ? -1L : (1L << steps) - 1;
  }

  /** Leave out each way that can only find what a preferred one finds too. */
  private List<Way> distinct(List<Way> ways) {
    if (ways.size() < 2) {
      return ways;
    }
    List<Way> found = new ArrayList<>(ways.size());
    Set<Future> futures = new HashSet<>();
    for (Way way : ways) {
      UnsafeRow decides = deciding.apply(way.memory()).copy();
      if (futures.add(new Future(way.state(), way.alive(), way.endsAt(), decides))) {
        found.add(way);
      }
    }
    return found;
  }

  /** What decides about the rest of a way. */
  private record Future(int state, long alive, long endsAt, UnsafeRow deciding) {}

  // -- conditions --------------------------------------------------------------------------------

  private boolean acceptsAny(int[] steps, Event event, UnsafeRow memory, UnsafeRow history) {
    for (int step : steps) {
      if (accepted(step, event, memory, history) != null) {
        return true;
      }
    }
    return false;
  }

  /** The slots after the event if the step accepts it, or null. */
  private UnsafeRow accepted(int step, Event event, UnsafeRow memory, UnsafeRow history) {
    if ((event.steps() >> step & 1) == 0) {
      return null;
    }
    boolean first = automaton.steps()[step].updatesFirst();
    UnsafeRow later = first ? updated(step, event, memory, history) : memory;
    if (conditions[step] != null && !conditions[step].eval(joined(event.row(), later, history))) {
      return null;
    }
    return first ? later : updated(step, event, memory, history);
  }

  private UnsafeRow updated(int step, Event event, UnsafeRow memory, UnsafeRow history) {
    return updates[step] == null
        ? memory
        : updates[step].apply(joined(event.row(), memory, history)).copy();
  }

  private InternalRow joined(UnsafeRow event, UnsafeRow memory, UnsafeRow history) {
    return row.apply(event, slots.apply(memory, history));
  }

  // -- matches -----------------------------------------------------------------------------------

  /** Hand over the matches that no other run can prevent, and drop the runs that they prevent. */
  private void release(KeyState state, BiConsumer<Run, Way> found) {
    state.runs.removeIf(run -> run.ways().isEmpty());
    if (automaton.afterMatch() == Automaton.AfterMatch.NEXT) {
      for (Run run : state.runs) {
        if (run.isDecided()) {
          found.accept(run, run.ways().get(0));
        }
      }
      state.runs.removeIf(Run::isDecided);
      return;
    }
    while (!state.runs.isEmpty() && state.runs.get(0).isDecided()) {
      Run run = state.runs.remove(0);
      Way match = run.ways().get(0);
      found.accept(run, match);
      long next = next(run, match);
      state.runs.removeIf(other -> other.first() < next);
    }
  }

  /** The number of the first event that may begin a match after this one. */
  private long next(Run run, Way match) {
    return switch (automaton.afterMatch()) {
      case NEXT -> run.first() + 1;
      case PAST_LAST -> match.last() + 1;
      case TO_FIRST, TO_LAST -> Math.max(match.after(), run.first() + 1);
    };
  }
}
