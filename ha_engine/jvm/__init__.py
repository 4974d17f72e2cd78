"""Classes for Spark's JVM. ``haengine.kafka`` reads Kafka at the offsets that the node decides, and
``haengine.shuffle`` reads the blocks of a shuffle in one order.

- build: compile them to a jar.
"""
