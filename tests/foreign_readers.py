"""Reading topics with what is not ours: Confluent's plain consumer and Debian's kcat."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition


def everything(bootstrap: str, topic: str) -> list[Any]:
    """Every message of a topic, with Confluent's plain consumer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "foreign", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found, ends = [], 0
    while ends < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return found


def as_json(value: Any) -> Any:
    """What AvroDeserializer gave, in the form of our examples: nulls left out, bytes as hex, moments in milliseconds."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value


def kcat_json(kcat: str, bootstrap: str, topic: str) -> list[Any]:
    """Every message as kcat's JSON; values are Avro, which Debian's build cannot read, so they come as odd characters."""
    command = [kcat, "-b", bootstrap, "-t", topic, "-C", "-J", "-e", "-q", "-o", "beginning"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line, strict=False) for line in done.stdout.decode("utf-8", "replace").split("\n") if line]
