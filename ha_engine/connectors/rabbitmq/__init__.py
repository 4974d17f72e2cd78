"""RabbitMQ: the source kind ``rabbitmq`` reads a queue, and the sink kind ``rabbitmq`` publishes to
an exchange.

``source``      consumes a queue, and acknowledges what is committed.
``sink``        publishes each row as a message, and waits for the broker's confirms.
``connection``  connects to the broker through a ``LoopThread``, and translates its errors.

The library is aio-pika, without its robust connections: a connection that is lost stays lost until
the engine opens the source or delivers again.
"""
