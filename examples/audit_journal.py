"""Re-checks the hash chains and the fence rule of a whole journal without Turnlog (JOURNAL.md, J1):

    python audit_journal.py BOOTSTRAP [TOPIC] [--schemas FOLDER | --registry URL]

Exit status 1 and a line for each fault if a chain is broken. Runs whose beginning was trimmed are followed from a snapshot.
"""

import argparse
import io
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

Head = tuple[int, bytes | None]


def messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """All records of all partitions up to their ends; those of one partition in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit", "enable.partition.eof": True})
    left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    while left:
        message = consumer.poll(60)
        error = message.error() if message else KafkaError(KafkaError._TIMED_OUT)
        if error is None and message is not None:
            yield message
        elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            sys.exit(f"{topic} cannot be read: {error}")
    consumer.close()


def writer_schema(number: int, folder: Path, registry: str | None) -> Any:
    """The schema that a record names: one of the numbered files, or the registry's."""
    files = list(folder.glob(f"{number:#010x}.*.avsc"))
    if files or registry is None:
        return fastavro.parse_schema(json.loads(files[0].read_text("utf-8")))
    with urllib.request.urlopen(f"{registry}/schemas/ids/{number}", timeout=30) as answer:
        return fastavro.parse_schema(json.loads(json.load(answer)["schema"]))


def judge(record: Any, digest: bytes, fence: bytes | None, heads: dict[str, Head]) -> str:
    """What one record is, after all before it in its partition. `heads` holds step and hash of each run's last valid step."""
    run, here, head = record["run_id"], (record["step"], record["prev"]), heads.get(record["run_id"])
    if record["kind"] == "fence":
        return "fence"
    if record["fence"] != fence:
        return "void"
    if record["kind"] == "snapshot":
        return "snapshot" if heads.setdefault(run, here) == here else "BROKEN"
    if head == (record["step"], digest):
        return "repeat"
    if head is None and record["step"] != 0:
        return "before a trimmed run's first snapshot"
    if here != ((0, None) if head is None else (head[0] + 1, head[1])):
        return "BROKEN"
    heads[run] = (record["step"], digest)
    return "step"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("topic", nargs="?", default="turnlog.journal")
    parser.add_argument("--schemas", type=Path, default=Path(__file__).parents[1] / "schemas" / "released")
    parser.add_argument("--registry")
    args = parser.parse_args()
    schemas: dict[int, Any] = {}
    fences: dict[int | None, bytes] = {}
    heads: dict[str, Head] = {}
    counts: Counter[str] = Counter()
    for message in messages(args.bootstrap, args.topic):
        value, partition = message.value() or b"", message.partition()
        number = int.from_bytes(value[1:5], "big")
        schema = schemas.get(number) or schemas.setdefault(number, writer_schema(number, args.schemas, args.registry))
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        verdict = judge(record, sha256(value).digest(), fences.get(partition), heads)
        if verdict == "fence":
            fences[partition] = record["fence"]
        said = dict(message.headers() or ())
        if (said["kind"], said["fence"], said["step"]) != (
            record["kind"].encode(),
            record["fence"],
            b"%d" % record["step"],
        ):
            verdict = "BROKEN"
        if verdict == "BROKEN":
            print(
                f"broken: partition {partition} offset {message.offset()} run {record['run_id']} step {record['step']}"
            )
        counts[verdict] += 1
    print(
        f"{args.topic}: {len(heads)} runs, "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    )
    return 1 if counts["BROKEN"] else 0


if __name__ == "__main__":
    sys.exit(main())
