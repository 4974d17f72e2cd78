package haengine.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Asks the node for marks, over the Unix socket of the option {@code mark.socket}.
 *
 * <p>A request is one line of JSON with the other options {@code mark.NAME}. With the member
 * {@code after} it asks for the mark that follows one, and with {@code skipped} whether a batch
 * reads no rows. The node answers one line, as soon as there is an answer, or with the member
 * {@code error}, and closes the connection. A node that ends closes it without an answer, which
 * ends the query.
 */
final class Marks {
  private static final String PREFIX = "mark.";

  private final UnixDomainSocketAddress node;
  private final ObjectNode request = MarkOffset.JSON.createObjectNode();

  Marks(CaseInsensitiveStringMap options) {
    String socket = options.get(PREFIX + "socket");
    if (socket == null) {
      throw new IllegalArgumentException("the option mark.socket is missing");
    }
    node = UnixDomainSocketAddress.of(socket);
    options.forEach(
        (name, value) -> {
          if (name.startsWith(PREFIX) && !name.equals(PREFIX + "socket")) {
            request.put(name.substring(PREFIX.length()), value);
          }
        });
  }

  /** The offsets where the query began. */
  String first() {
    return answer(request);
  }

  /** The offset {@code text} of a mark, with the offsets of Kafka that it may lack. */
  String complete(String text) {
    JsonNode offset = MarkOffset.parsed(text);
    if (offset.has("at") || !MarkOffset.isMark(offset)) {
      return text;
    }
    ObjectNode question = request.deepCopy();
    question.set("mark", offset.get("mark"));
    question.set("sequence", offset.get("sequence"));
    return answer(question);
  }

  /** The mark that follows {@code mark}; blocks until there is one. */
  String after(long mark) {
    return answer(request.deepCopy().put("after", mark));
  }

  /** Whether the batch that {@code mark} ends reads no rows, since an operator gave it up. */
  boolean skipped(long mark) {
    String answer = answer(request.deepCopy().put("skipped", mark));
    return MarkOffset.parsed(answer).path("skipped").asBoolean();
  }

  private String answer(JsonNode question) {
    ByteArrayOutputStream answer = new ByteArrayOutputStream();
    try (SocketChannel channel = SocketChannel.open(node)) {
      ByteBuffer line = ByteBuffer.wrap((question + "\n").getBytes(StandardCharsets.UTF_8));
      while (line.hasRemaining()) {
        channel.write(line);
      }
      // An interrupt, with which Spark stops a query, closes the channel.
      Channels.newInputStream(channel).transferTo(answer);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    String text = answer.toString(StandardCharsets.UTF_8);
    if (!text.endsWith("\n")) {
      throw new IllegalStateException("the node ended before it answered " + question);
    }
    JsonNode error = MarkOffset.parsed(text).get("error");
    if (error != null) {
      throw new IllegalStateException(error.asText());
    }
    return text;
  }

  @Override
  public String toString() {
    return request.toString();
  }
}
