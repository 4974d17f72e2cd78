package haengine.patterns;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionId;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Nondeterministic;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.With;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.GroupStateTimeout;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans a pattern: a program in JSON, and frames of Spark that select its expressions.
 *
 * <p>Spark evaluates the parts of conditions that need no earlier event, and sends the columns that
 * the other expressions need. Spark drops the events that no step may accept, unless a step needs
 * the event before.
 */
public final class PatternPlan {
  private static final ObjectMapper JSON = new ObjectMapper();

  record Program(
      List<StreamPart> streams,
      int lookups,
      List<StepPart> steps,
      Automaton.State[] states,
      long within,
      Automaton.AfterMatch afterMatch,
      int afterStep,
      int keyBytesMax) {}

  record StreamPart(String time, List<String> by, boolean table) {}

  record StepPart(String name, int stream) {}

  /** A stream: its frame, the columns of the frame, and those of the slots. */
  private record Input(Dataset<Row> frame, List<Attribute> columns, List<Attribute> slots) {}

  /** A step: the part of its condition on the event alone, and the part on earlier ones, or null. */
  private record Parts(Expression local, Expression rest, List<Expression> updates) {}

  private final Program program;
  private final String shape;
  private final List<Expression> initialMemory;
  private final List<Expression> initialHistory;
  private final StructType memory;
  private final StructType history;
  private final List<Input> inputs = new ArrayList<>();
  private final List<Parts> steps = new ArrayList<>();
  private final List<List<Expression>> historyUpdates = new ArrayList<>();

  /** {@code memory} and {@code history} select the values of the slots before any event. */
  public PatternPlan(String program, Dataset<Row> memory, Dataset<Row> history) throws Exception {
    this.program = JSON.readValue(program, Program.class);
    JsonNode tree = JSON.readTree(program);
    this.shape = "" + tree.get("streams") + tree.get("steps") + tree.get("states");
    this.initialMemory = selected(memory);
    this.initialHistory = selected(history);
    this.memory = memory.schema();
    this.history = history.schema();
  }

  /** Add the next stream. {@code withSlots} has all columns of {@code frame}, then the slots. */
  public void stream(Dataset<Row> frame, Dataset<Row> withSlots) {
    List<Attribute> all = output(withSlots);
    int columns = frame.columns().length;
    inputs.add(new Input(frame, all.subList(0, columns), all.subList(columns, all.size())));
  }

  /** Add the next step. The frames select its condition, and the slots after its event. */
  public void step(Dataset<Row> condition, Dataset<Row> updates) {
    Input input = inputs.get(program.steps().get(steps.size()).stream());
    AttributeSet slots = AttributeSet.apply(PatternPlan.<Expression>seq(List.copyOf(input.slots())));
    Expression local = null;
    Expression rest = null;
    for (Expression one : conjuncts(selected(condition).get(0))) {
      if (one.references().intersect(slots).isEmpty()) {
        local = and(local, one);
      } else {
        rest = and(rest, one);
      }
    }
    steps.add(new Parts(local, rest, selected(updates)));
  }

  /** The slots of earlier events after an event of the next stream. */
  public void history(Dataset<Row> updates) {
    historyUpdates.add(selected(updates));
  }

  /** The frame of the matches: the key, match_start, match_end and the slots. */
  public Dataset<Row> planned() {
    Dataset<Row> events = events();
    StructType key = (StructType) events.schema().apply("key").dataType();
    return events
        .groupByKey((MapFunction<Row, Row>) event -> event.getStruct(0), Encoders.row(key))
        .flatMapGroupsWithState(
            matching(),
            OutputMode.Append(),
            Encoders.BINARY(),
            Encoders.row(matches(key)),
            GroupStateTimeout.EventTimeTimeout());
  }

  FlatMapGroupsWithStateFunction<Row, Row, byte[], Row> matching() {
    return new Matching(automaton(used()));
  }

  /** The events of all streams, in the form that {@link #matching} takes. */
  Dataset<Row> events() {
    List<List<Attribute>> used = used();
    Dataset<Row> events = events(0, used);
    for (int stream = 1; stream < inputs.size(); stream++) {
      events = events.union(events(stream, used));
    }
    return events;
  }

  private List<List<Attribute>> used() {
    return IntStream.range(0, inputs.size()).mapToObj(this::used).toList();
  }

  private StructType matches(StructType key) {
    List<StructField> fields = new ArrayList<>();
    for (String column : program.streams().get(0).by()) {
      StructField field = key.fields()[fields.size()];
      fields.add(DataTypes.createStructField(column, field.dataType(), true));
    }
    fields.add(DataTypes.createStructField("match_start", DataTypes.TimestampType, false));
    fields.add(DataTypes.createStructField("match_end", DataTypes.TimestampType, false));
    for (StructField slot : memory.fields()) {
      fields.add(DataTypes.createStructField(slot.name(), slot.dataType(), true));
    }
    return DataTypes.createStructType(fields);
  }

  /** The columns of a stream that the expressions need when an event is matched. */
  private List<Attribute> used(int stream) {
    Set<Expression> needed = new LinkedHashSet<>();
    for (int step = 0; step < steps.size(); step++) {
      if (program.steps().get(step).stream() == stream) {
        Parts parts = steps.get(step);
        needed.addAll(parts.updates());
        if (parts.rest() != null) {
          needed.add(parts.rest());
        }
      }
    }
    needed.addAll(historyUpdates.get(stream));
    List<Attribute> found = new ArrayList<>();
    for (Attribute column : inputs.get(stream).columns()) {
      if (needed.stream().anyMatch(one -> one.references().contains(column))) {
        found.add(column);
      }
    }
    return found;
  }

  private Automaton automaton(List<List<Attribute>> used) {
    Automaton.Step[] bound = new Automaton.Step[steps.size()];
    for (int step = 0; step < bound.length; step++) {
      StepPart part = program.steps().get(step);
      Parts parts = steps.get(step);
      List<Attribute> row = row(part.stream(), used);
      Expression rest = parts.rest() == null ? null : bound(parts.rest(), row);
      boolean changes = !parts.updates().equals(memoryOf(part.stream()));
      Expression[] updates = changes ? bound(parts.updates(), row) : null;
      boolean first = parts.rest() != null && needsOwn(parts, memoryOf(part.stream()));
      bound[step] = new Automaton.Step(part.stream(), rest, updates, first);
    }
    Expression[][] kept = new Expression[inputs.size()][];
    for (int stream = 0; stream < kept.length; stream++) {
      kept[stream] = bound(historyUpdates.get(stream), row(stream, used));
    }
    StructType[] events = used.stream().map(PatternPlan::schema).toArray(StructType[]::new);
    return new Automaton(
        program.states(),
        bound,
        events,
        tables(),
        program.lookups(),
        memory,
        history,
        initialMemory.toArray(Expression[]::new),
        initialHistory.toArray(Expression[]::new),
        kept,
        deciding(),
        program.within(),
        program.streams().get(0).by().size(),
        program.afterMatch(),
        program.afterStep(),
        program.keyBytesMax(),
        layout(events));
  }

  private boolean[] tables() {
    boolean[] tables = new boolean[inputs.size()];
    for (int stream = 0; stream < tables.length; stream++) {
      tables[stream] = program.streams().get(stream).table();
    }
    return tables;
  }

  /** The slots that conditions depend on, themselves or through other slots. */
  private Expression[] deciding() {
    Set<Integer> found = new TreeSet<>();
    for (int step = 0; step < steps.size(); step++) {
      Expression rest = steps.get(step).rest();
      if (rest != null) {
        found.addAll(slotsIn(rest, step));
      }
    }
    int before = -1;
    while (found.size() > before) {
      before = found.size();
      for (int step = 0; step < steps.size(); step++) {
        for (int slot : List.copyOf(found)) {
          found.addAll(slotsIn(steps.get(step).updates().get(slot), step));
        }
      }
    }
    return found.stream()
        .map(slot -> new BoundReference(slot, memory.fields()[slot].dataType(), true))
        .toArray(Expression[]::new);
  }

  /** The slots of the memory in an expression of a step. */
  private List<Integer> slotsIn(Expression expression, int step) {
    List<Attribute> slots = memoryOf(program.steps().get(step).stream());
    return IntStream.range(0, slots.size())
        .filter(slot -> expression.references().contains(slots.get(slot)))
        .boxed()
        .toList();
  }

  /** Whether the condition of a step depends on a slot that its own event changes. */
  private static boolean needsOwn(Parts parts, List<Attribute> slots) {
    return IntStream.range(0, slots.size())
        .filter(slot -> !parts.updates().get(slot).equals(slots.get(slot)))
        .anyMatch(slot -> parts.rest().references().contains(slots.get(slot)));
  }

  /** A checksum of all that the bytes of a {@link KeyState} depend on. */
  private int layout(StructType[] events) {
    StringBuilder text = new StringBuilder(shape);
    text.append(program.afterMatch()).append(program.afterStep());
    for (StructType schema : events) {
      text.append(schema.toDDL());
    }
    text.append(memory.toDDL()).append(history.toDDL());
    CRC32 checksum = new CRC32();
    checksum.update(text.toString().getBytes(StandardCharsets.UTF_8));
    return (int) checksum.getValue();
  }

  /** The columns of the row over which the expressions of a stream are evaluated. */
  private List<Attribute> row(int stream, List<List<Attribute>> used) {
    return Stream.concat(used.get(stream).stream(), inputs.get(stream).slots().stream()).toList();
  }

  private List<Attribute> memoryOf(int stream) {
    return inputs.get(stream).slots().subList(0, memory.length());
  }

  /** The events of a stream, as rows of {@link Event}. */
  private Dataset<Row> events(int stream, List<List<Attribute>> used) {
    Input input = inputs.get(stream);
    StreamPart part = program.streams().get(stream);
    Column steps = accepted(stream);
    Column time = named(part.time());
    Column micros = functions.unix_micros(time);
    Dataset<Row> frame = input.frame().where(time.isNotNull());
    if (!part.table() && !needsEach()) {
      // The time is in the condition, because otherwise Spark would drop events before they
      // advance the watermark.
      frame = frame.where(functions.when(micros.geq(Long.MIN_VALUE), steps).notEqual(0L));
    }
    List<Column> columns = new ArrayList<>();
    columns.add(struct(part.by().stream().map(PatternPlan::named).toList()).as("key"));
    // Spark drops no row of a table as late, as a table has no watermark.
    columns.add((part.table() ? functions.lit(null).cast("timestamp") : time).as("time"));
    columns.add(micros.as("micros"));
    columns.add(functions.col("_event_id").as("id"));
    columns.add(functions.lit(stream).as("stream"));
    columns.add(steps.as("steps"));
    for (int other = 0; other < inputs.size(); other++) {
      StructType schema = schema(used.get(other));
      Column event =
          other == stream
              ? struct(used.get(other).stream().map(PatternPlan::column).toList())
              : functions.lit(null).cast(schema.isEmpty() ? NOTHING : schema);
      columns.add(event.as("event" + other));
    }
    return frame.select(columns.toArray(Column[]::new));
  }

  /** Whether each event matters: a step needs the next one, or the one before it. */
  private boolean needsEach() {
    return history.length() > program.lookups()
        || Stream.of(program.states()).flatMap(s -> Stream.of(s.takes())).anyMatch(t -> t.adjacent());
  }

  /** The steps whose condition on the event alone is true, as bits. */
  private Column accepted(int stream) {
    Column bits = functions.lit(0L);
    for (int step = 0; step < steps.size(); step++) {
      if (program.steps().get(step).stream() == stream) {
        Expression local = steps.get(step).local();
        Column bit = functions.lit(1L << step);
        if (local != null) {
          bit = functions.when(column(local), bit).otherwise(0L);
        }
        bits = bits.bitwiseOR(bit);
      }
    }
    return bits;
  }

  private static final StructType NOTHING =
      new StructType().add("nothing", DataTypes.IntegerType);

  /** A struct of columns, which has at least one. */
  private static Column struct(List<Column> columns) {
    return columns.isEmpty()
        ? functions.struct(functions.lit(0).as("nothing"))
        : functions.struct(columns.toArray(Column[]::new));
  }

  private static Column named(String column) {
    return functions.col(quoted(column));
  }

  private static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  // -- expressions of Spark ----------------------------------------------------------------------

  private static Column column(Expression expression) {
    return ExpressionUtils.column(expression);
  }

  private static StructType schema(List<Attribute> columns) {
    StructType schema = new StructType();
    for (Attribute one : columns) {
      schema = schema.add(one.name(), one.dataType(), true);
    }
    return schema;
  }

  /** The expressions that a frame selects. */
  private static List<Expression> selected(Dataset<Row> frame) {
    LogicalPlan plan = ReplaceExpressions$.MODULE$.apply(analyzed(frame));
    LogicalPlan below = plan;
    while (below instanceof Project project) {
      below = project.child();
    }
    if (!(plan instanceof Project) || below instanceof Window) {
      throw new IllegalArgumentException(
          "a pattern knows the aggregates count, sum, avg, min, max, first, last and collect_list, "
              + "without DISTINCT and FILTER, and no window function; use these");
    }
    List<Expression> found = new ArrayList<>();
    for (var one : CollectionConverters.asJava(((Project) plan).projectList())) {
      Expression expression = one instanceof Alias alias ? alias.child() : (Expression) one;
      found.add(evaluable(inlined(expression, Map.of())));
    }
    return found;
  }

  /**
   * An expression with definitions in place of the references to them, as in {@code nullif(a, b)},
   * which Spark's optimizer would compute once.
   */
  private static Expression inlined(
      Expression expression, Map<CommonExpressionId, Expression> definitions) {
    if (expression instanceof CommonExpressionRef reference) {
      return definitions.get(reference.id());
    }
    if (expression instanceof With with) {
      Map<CommonExpressionId, Expression> all = new HashMap<>(definitions);
      for (CommonExpressionDef one : CollectionConverters.asJava(with.defs())) {
        all.put(one.id(), inlined(one.child(), definitions));
      }
      return inlined(with.child(), all);
    }
    List<Expression> children = CollectionConverters.asJava(expression.children());
    List<Expression> changed = children.stream().map(one -> inlined(one, definitions)).toList();
    return expression.withNewChildren(seq(changed));
  }

  /**
   * The expression. Throws IllegalArgumentException if only a plan of Spark can evaluate it, or if
   * its value differs from call to call.
   */
  private static Expression evaluable(Expression expression) {
    boolean unknown = expression instanceof Unevaluable && !(expression instanceof Attribute);
    if (unknown || expression instanceof Nondeterministic) {
      throw new IllegalArgumentException(
          "a pattern cannot evaluate " + expression.sql() + "; use an expression without it");
    }
    CollectionConverters.asJava(expression.children()).forEach(PatternPlan::evaluable);
    return expression;
  }

  private static List<Attribute> output(Dataset<Row> frame) {
    return List.copyOf(CollectionConverters.asJava(analyzed(frame).output()));
  }

  private static LogicalPlan analyzed(Dataset<Row> frame) {
    return ((org.apache.spark.sql.classic.Dataset<Row>) frame).queryExecution().analyzed();
  }

  private static List<Expression> conjuncts(Expression condition) {
    if (condition instanceof And and) {
      return Stream.concat(conjuncts(and.left()).stream(), conjuncts(and.right()).stream())
          .toList();
    }
    return List.of(condition);
  }

  private static Expression and(Expression left, Expression right) {
    return left == null ? right : new And(left, right);
  }

  private static Expression[] bound(List<Expression> expressions, List<Attribute> row) {
    return expressions.stream().map(one -> bound(one, row)).toArray(Expression[]::new);
  }

  private static Expression bound(Expression expression, List<Attribute> row) {
    return BindReferences.bindReference(
        expression, package$.MODULE$.AttributeSeq(seq(row)), false);
  }

  private static <T> scala.collection.immutable.Seq<T> seq(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }
}
