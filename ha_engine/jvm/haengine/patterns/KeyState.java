package haengine.patterns;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/**
 * What a query keeps of one key: the events after the watermark in their order, and the runs in the
 * order of their first events.
 *
 * <p>{@code events} counts the events that were matched. {@code history} are the slots of the
 * events before, of which the newest was at {@code lastMicros}, and the rows of tables. {@code
 * lastMicros} is {@code NEVER} if the history has only rows of tables.
 */
final class KeyState {
  /** The time of no event. */
  static final long NEVER = Long.MIN_VALUE;

  private static final int VERSION = 1;

  final List<Event> waiting = new ArrayList<>();
  final List<Run> runs = new ArrayList<>();
  long events;
  long lastMicros = NEVER;
  UnsafeRow history;

  boolean isEmpty() {
    return waiting.isEmpty() && runs.isEmpty() && history == null;
  }

  /** The state as bytes that an automaton with the same {@code layout} can read. */
  byte[] bytes(int layout) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (DataOutputStream out = new DataOutputStream(bytes)) {
      out.writeByte(VERSION);
      out.writeInt(layout);
      out.writeLong(events);
      out.writeLong(lastMicros);
      writeRow(out, history);
      out.writeInt(waiting.size());
      for (Event event : waiting) {
        out.writeLong(event.micros());
        out.writeUTF(event.id());
        out.writeInt(event.stream());
        out.writeLong(event.steps());
        writeRow(out, event.row());
      }
      out.writeInt(runs.size());
      for (Run run : runs) {
        out.writeLong(run.first());
        out.writeLong(run.firstMicros());
        out.writeLong(run.deadline());
        out.writeInt(run.ways().size());
        for (Way way : run.ways()) {
          out.writeInt(way.state());
          out.writeLong(way.alive());
          out.writeLong(way.endsAt());
          out.writeLong(way.last());
          out.writeLong(way.lastMicros());
          out.writeLong(way.after());
          writeRow(out, way.memory());
        }
      }
    } catch (IOException impossible) {
      throw new UncheckedIOException(impossible);
    }
    return bytes.toByteArray();
  }

  /** Read the bytes of a state of {@code automaton}. */
  static KeyState of(byte[] bytes, Automaton automaton) {
    KeyState state = new KeyState();
    int memory = automaton.memory().length();
    try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes))) {
      if (in.readByte() != VERSION || in.readInt() != automaton.layout()) {
        throw new IllegalStateException(
            "the state in the checkpoint is of another pattern, with other steps or values; "
                + "set on_change: reset to begin without a state");
      }
      state.events = in.readLong();
      state.lastMicros = in.readLong();
      state.history = readRow(in, automaton.history().length());
      for (int left = in.readInt(); left > 0; left--) {
        long micros = in.readLong();
        String id = in.readUTF();
        int stream = in.readInt();
        long steps = in.readLong();
        UnsafeRow row = readRow(in, automaton.events()[stream].length());
        state.waiting.add(new Event(micros, id, stream, steps, row));
      }
      for (int left = in.readInt(); left > 0; left--) {
        Run run = new Run(in.readLong(), in.readLong(), in.readLong(), new ArrayList<>());
        for (int ways = in.readInt(); ways > 0; ways--) {
          run.ways()
              .add(
                  new Way(
                      in.readInt(),
                      in.readLong(),
                      in.readLong(),
                      in.readLong(),
                      in.readLong(),
                      in.readLong(),
                      readRow(in, memory)));
        }
        state.runs.add(run);
      }
    } catch (IOException truncated) {
      throw new UncheckedIOException("the state of the pattern is damaged", truncated);
    }
    return state;
  }

  private static void writeRow(DataOutputStream out, UnsafeRow row) throws IOException {
    if (row == null) {
      out.writeInt(-1);
      return;
    }
    byte[] bytes = row.getBytes();
    out.writeInt(bytes.length);
    out.write(bytes);
  }

  private static UnsafeRow readRow(DataInputStream in, int columns) throws IOException {
    int length = in.readInt();
    if (length < 0) {
      return null;
    }
    byte[] bytes = in.readNBytes(length);
    UnsafeRow row = new UnsafeRow(columns);
    row.pointTo(bytes, bytes.length);
    return row;
  }
}
