package haengine.patterns;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/**
 * An event of a key: its time in microseconds, its id, its stream, the steps whose conditions on the
 * event alone it meets, as bits, and the columns that the other expressions need.
 */
record Event(long micros, String id, int stream, long steps, UnsafeRow row)
    implements Comparable<Event> {

  /** Compare by time, then by id, with numbers in ids compared as numbers, then by stream. */
  @Override
  public int compareTo(Event other) {
    int order = Long.compare(micros, other.micros);
    if (order == 0) {
      order = compareIds(id, other.id);
    }
    return order != 0 ? order : Integer.compare(stream, other.stream);
  }

  private static int compareIds(String one, String other) {
    int i = 0;
    int j = 0;
    while (i < one.length() && j < other.length()) {
      int iEnd = endOfNumber(one, i);
      int jEnd = endOfNumber(other, j);
      int order;
      if (iEnd > i && jEnd > j) {
        order = compareNumbers(one.substring(i, iEnd), other.substring(j, jEnd));
        i = iEnd;
        j = jEnd;
      } else {
        order = Character.compare(one.charAt(i++), other.charAt(j++));
      }
      if (order != 0) {
        return order;
      }
    }
    int rest = Integer.compare(one.length() - i, other.length() - j);
    return rest != 0 ? rest : one.compareTo(other);
  }

  private static int endOfNumber(String text, int at) {
    while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
      at++;
    }
    return at;
  }

  private static int compareNumbers(String one, String other) {
    String digits = withoutZeros(one);
    String others = withoutZeros(other);
    int order = Integer.compare(digits.length(), others.length());
    return order != 0 ? order : digits.compareTo(others);
  }

  private static String withoutZeros(String number) {
    int at = 0;
    while (at < number.length() - 1 && number.charAt(at) == '0') {
      at++;
    }
    return number.substring(at);
  }
}
