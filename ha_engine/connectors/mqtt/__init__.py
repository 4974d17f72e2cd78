"""MQTT 5: the source kind ``mqtt`` and the sink kind ``mqtt``.

``source``      reads the messages of topics through a session that the broker keeps.
``sink``        publishes each row as a message.
``connection``  connects to the broker, and runs the network loop of paho-mqtt in a thread.

The library is paho-mqtt, whose version 2 runs without an event loop. Both kinds use QoS 1, under
which the broker and the client repeat a message until the other side acknowledges it.
"""
