"""The connector of RabbitMQ: a source of the messages of a queue or a stream, and a sink that
publishes to an exchange.

``connection``     the options of both, the connection to the broker, and its errors.
``fields``         decodes the fields of a message that the library refuses.
``source``         the source of either.
``queue_source``   reads a queue, and acknowledges what is committed.
``stream_source``  reads a stream by its offsets.
``consumer``       the options of the source, and the deliveries that have arrived.
``sink``           publishes a query's rows, and waits for the broker's confirms.

The library is aio-pika, without its robust connections, which connect again by themselves.
"""
