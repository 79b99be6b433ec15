"""Re-checks hash chains and fence rule of a whole journal without Turnlog (docs/journal.md, J1): a line a fault, exit 1 if any.

python audit_journal.py BOOTSTRAP [TOPIC [SCHEMAS]]      SCHEMAS: a folder of numbered files, or a registry's URL

What cannot be judged is no clean journal: exit 1 as well where there is no such topic, or where nothing in it could be read.
"""

# mypy: ignore-errors
# Types and one import a line would double a text that is to be read whole.
# ruff: noqa: E401, I001

import functools, io, json, sys, urllib.request
from collections import Counter
from hashlib import sha256
from pathlib import Path

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

if not 2 <= len(sys.argv) <= 4 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
released = Path(__file__).parents[1] / "schemas" / "released"
bootstrap, topic, source = sys.argv[1:] + ["turnlog.journal", str(released)][len(sys.argv) - 2 :]


@functools.cache
def schema(number):
    if source.startswith("http"):
        return fastavro.parse_schema(
            json.loads(json.load(urllib.request.urlopen(f"{source}/schemas/ids/{number}"))["schema"])
        )
    return fastavro.parse_schema(json.loads(next(Path(source).glob(f"{number:#010x}.*.avsc")).read_text()))


def judge(message, record, fence):
    """What a record is, after all before it in its partition; `heads`: step and hash of each run's last valid step."""
    run, here, digest, headers = (
        record["run_id"],
        (record["step"], record["prev"]),
        sha256(message.value()).digest(),
        dict(message.headers()),
    )
    head = heads.get(run)
    if (headers.get("kind"), headers.get("fence")) != (record["kind"].encode(), record["fence"]):
        return "BROKEN"
    if record["kind"] == "fence" or record["fence"] != fence:
        return "fence" if record["kind"] == "fence" else "void"
    if record["kind"] == "snapshot":
        return "snapshot" if heads.setdefault(run, here) == here else "BROKEN"
    if head == (here[0], digest) or (head is None and here[0] > 0):
        return "repeat" if head else "trimmed"
    if here != ((head[0] + 1, head[1]) if head else (0, None)):
        return "BROKEN"
    heads[run] = (here[0], digest)
    return "step"


fences, heads, counts = {}, {}, Counter()
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit", "enable.partition.eof": True})
unread = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions) or sys.exit(f"there is no topic {topic}")
consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
while unread:
    message = consumer.poll(60) or sys.exit(f"{topic} cannot be read")
    if message.error() and message.error().code() != KafkaError._PARTITION_EOF:
        sys.exit(f"{topic} cannot be read: {message.error()}")
    if message.error():
        unread.discard(message.partition())
        continue
    try:
        record = fastavro.schemaless_reader(
            io.BytesIO(message.value()[5:]), schema(int.from_bytes(message.value()[1:5], "big")), None
        )
        verdict = judge(message, record, fences.get(message.partition()))
    except (ValueError, LookupError, EOFError, OSError, StopIteration, TypeError):
        record, verdict = None, "unreadable"
    if verdict == "fence":
        fences[message.partition()] = record["fence"]
    if verdict == "BROKEN":
        print(
            f"broken: partition {message.partition()}, offset {message.offset()}, run {record['run_id']} step {record['step']}"
        )
    counts[verdict] += 1
consumer.close()
print(f"{topic}: {len(heads)} runs", *(f"{count} {verdict}" for verdict, count in sorted(counts.items())), sep=", ")
if counts and not counts.keys() - {"unreadable"}:
    sys.exit(f"nothing could be read: are the schemas in {source}?")
sys.exit(1 if counts["BROKEN"] else 0)
