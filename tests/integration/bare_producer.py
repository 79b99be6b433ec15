"""Appends records that no client in Python can write, with the library that confluent-kafka brings along."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS, _END = (ctypes.c_int(tag) for tag in (2, 3, 4, 5, 7, 10, 0))
"""Tags of `rd_kafka_producev`'s arguments."""
_COPY = ctypes.c_int(2)


def append(
    bootstrap: str, topic: str, partition: int, key: bytes, value: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    """One record, acknowledged when this returns. Names of headers are whatever bytes they are."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for maker in ("conf_new", "new", "topic_new", "headers_new"):
        getattr(library, f"rd_kafka_{maker}").restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), said, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, said, 512))
    written = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for name, content in headers:
        size = ctypes.c_ssize_t(len(content))
        library.rd_kafka_header_add(written, name, ctypes.c_ssize_t(len(name)), content, size)
    place = ctypes.c_void_p(library.rd_kafka_topic_new(producer, topic.encode(), None))
    code = library.rd_kafka_producev(
        producer, _TOPIC, place, _PARTITION, ctypes.c_int32(partition), _VALUE, value, ctypes.c_size_t(len(value)),
        _KEY, key, ctypes.c_size_t(len(key)), _FLAGS, _COPY, _HEADERS, written, _END,
    )  # fmt: skip
    assert code == 0, code
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_topic_destroy(place)
    library.rd_kafka_destroy(producer)
