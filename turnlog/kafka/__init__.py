"""Kafka behind one narrow port (port.py). Only this package imports confluent_kafka, and only where a real cluster is meant.

`from turnlog.kafka.port import ...` for what the shells speak, `from turnlog.kafka.client import KafkaCluster` for the real one.
"""
