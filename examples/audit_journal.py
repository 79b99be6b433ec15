"""Re-checks the hash chains and the fence rule of a whole journal, without Turnlog (JOURNAL.md, J1):

    python audit_journal.py BOOTSTRAP [TOPIC [SCHEMAS]]      SCHEMAS: a folder of numbered files, or a registry's URL

Prints a line for each fault and what was counted; exit status 1 if a chain is broken. A run whose beginning was trimmed is
followed from its first snapshot.
"""

import io
import json
import sys
import urllib.request
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition


def read(value: bytes, schemas: dict[int, Any], source: str) -> Any:
    """The record in a value (0x00, schema id, Avro), read with the schema it names; None if there is none."""
    number = int.from_bytes(value[1:5], "big")
    try:
        if number not in schemas and source.startswith("http"):
            with urllib.request.urlopen(f"{source}/schemas/ids/{number}", timeout=30) as answer:
                schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        elif number not in schemas:
            (path,) = Path(source).glob(f"{number:#010x}.*.avsc")
            schemas[number] = fastavro.parse_schema(json.loads(path.read_text("utf-8")))
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[number], None)
    except (ValueError, LookupError, EOFError, OSError):
        return None


def judge(record: Any, digest: bytes, fence: bytes | None, heads: dict[str, tuple[int, bytes | None]]) -> str:
    """What a record is, after all before it in its partition. `heads`: step and hash of each run's last valid step."""
    run, step, here = record["run_id"], record["step"], (record["step"], record["prev"])
    head = heads.get(run)
    if record["kind"] == "fence":
        return "fence"
    if record["fence"] != fence:
        return "void"
    if record["kind"] == "snapshot":
        return "snapshot" if heads.setdefault(run, here) == here else "BROKEN"
    if head == (step, digest):
        return "repeat"
    if head is None and step > 0:
        return "trimmed"
    if here != ((head[0] + 1, head[1]) if head else (0, None)):
        return "BROKEN"
    heads[run] = (step, digest)
    return "step"


def main(bootstrap: str, topic: str = "turnlog.journal", source: str = "schemas/released") -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit", "enable.partition.eof": True})
    unread = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
    fences, heads, schemas, counts = dict[int, bytes](), dict[str, Any](), dict[int, Any](), Counter[str]()
    while unread:
        message = consumer.poll(60)
        error = message.error() if message else KafkaError(KafkaError._TIMED_OUT)
        if message is None or (error and error.code() != KafkaError._PARTITION_EOF):
            sys.exit(f"{topic} cannot be read: {error}")
        partition, value = message.partition() or 0, message.value() or b""
        if error:
            unread.discard(partition)
            continue
        headers, record = dict(message.headers() or ()), read(value, schemas, source)
        verdict = judge(record, sha256(value).digest(), fences.get(partition), heads) if record else "unreadable"
        if verdict == "fence":
            fences[partition] = record["fence"]
        if record and (headers.get("kind"), headers.get("fence")) != (record["kind"].encode(), record["fence"]):
            verdict = "BROKEN"
        if verdict == "BROKEN":
            print(
                f"broken: partition {partition}, offset {message.offset()}, run {record['run_id']} step {record['step']}"
            )
        counts[verdict] += 1
    consumer.close()
    print(f"{topic}: {len(heads)} runs", *(f"{count} {verdict}" for verdict, count in sorted(counts.items())), sep=", ")
    return 1 if counts["BROKEN"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
