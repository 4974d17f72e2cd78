"""Classes for Spark's JVM: ``haengine.kafka`` reads Kafka at the offsets that the node decides.

- build: compile them to a jar.
"""
