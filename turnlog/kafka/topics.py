"""Topics as schemas/topics/*.yaml describe them: names, what each must look like, and making those that are missing.

topic_check.py compares them with a cluster, topic_acls.py says who needs which right.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from turnlog.codec.schemas import folder
from turnlog.kafka.port import (
    Admin,
    LogError,
    NewTopic,
    NotAuthorised,
    Partition,
    Refused,
    Retryable,
    TopicInfo,
    UnknownTopic,
)

Role = Literal["upstream", "loop", "worker", "operator", "auditor"]

LAST_OF_ITS_KEY = "last of its key"
INSTALLATION = "installation"

#: A record may have 1 MiB (docs/journal.md, sizes); the batch around it takes a little more.
MAX_MESSAGE_BYTES = 1024 * 1024 + 4096

_RETENTION = re.compile(r"(?P<count>[1-9]\d*)(?P<unit>[dhm])")
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000}
_TOOLSET = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Kafka's limit for a topic's name, and the only characters it takes.
_LONGEST_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class BadTopicFile(Exception):
    """A file under schemas/topics does not say what it must; the message names file and field."""


class TopicSpec(BaseModel):
    """One file of schemas/topics; README.md there explains the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
    purpose: Annotated[str, Field(min_length=20)]
    per_toolset: bool = False
    key: Annotated[str, Field(min_length=1)]
    value: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]+$")]
    partitions: Literal["installation"] | Annotated[int, Field(ge=1, le=10_000)]
    cleanup: Literal["delete", "compact"]
    retention: str
    writers: Annotated[tuple[Role, ...], Field(min_length=1)]
    readers: Annotated[tuple[Role, ...], Field(min_length=1)]
    trimmed_by: tuple[Role, ...] = ()
    created_by: tuple[Role, ...] = ()
    config: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("retention")
    @classmethod
    def _readable(cls, text: str) -> str:
        if text in ("forever", LAST_OF_ITS_KEY) or _RETENTION.fullmatch(text):
            return text
        raise ValueError(f"{text!r} is none of 14d, 12h, 30m, forever, {LAST_OF_ITS_KEY!r}")

    @model_validator(mode="after")
    def _consistent(self) -> TopicSpec:
        if (self.cleanup == "compact") != (self.retention == LAST_OF_ITS_KEY):
            raise ValueError(f"cleanup {self.cleanup} does not go with retention {self.retention!r}")
        if self.per_toolset and self.partitions == INSTALLATION:
            raise ValueError("a toolset's topic has a partition count of its own")
        return self

    @property
    def co_partitioned(self) -> bool:
        """Whether its partition count is the installation's, fixed for its life."""
        return self.partitions == INSTALLATION

    @property
    def retention_ms(self) -> int | None:
        """-1 is for ever; None where compaction decides."""
        if self.retention == LAST_OF_ITS_KEY:
            return None
        found = _RETENTION.fullmatch(self.retention)
        return int(found["count"]) * _UNIT_MS[found["unit"]] if found else -1


class LayoutSettings(Protocol):
    """What of the services' settings (turnlog.settings) concerns topics."""

    @property
    def topic_prefix(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def replication(self) -> int: ...


class Layout(BaseModel):
    """One installation's choices: what the files leave open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str = "turnlog."
    partitions: Annotated[int, Field(ge=1)] = 4
    replication: Annotated[int, Field(ge=1)] = 1
    toolsets: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: LayoutSettings, toolsets: Sequence[str] = ()) -> Layout:
        return cls(
            prefix=settings.topic_prefix,
            partitions=settings.partitions,
            replication=settings.replication,
            toolsets=tuple(toolsets),
        )

    def planned(self, names: Sequence[str] | None = None) -> Iterator[tuple[TopicSpec, NewTopic]]:
        """Every topic of the installation, or of those files only; templates once per toolset."""
        for spec in specs().values():
            if names is None or spec.name in names:
                for toolset in self.toolsets if spec.per_toolset else (None,):
                    yield spec, self.plan(spec, toolset)

    def plan(self, spec: TopicSpec, toolset: str | None = None) -> NewTopic:
        """The topic as it must be."""
        name = topic_name(self.prefix, spec.name, toolset)
        partitions = self.partitions if isinstance(spec.partitions, str) else spec.partitions
        return NewTopic(name, partitions, self.replication, topic_config(spec, self.replication))


def topic_config(spec: TopicSpec, replication: int) -> dict[str, str]:
    """The topic's properties: what all have in common, what follows from the fields, what the file adds."""
    common = {
        "cleanup.policy": spec.cleanup,
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": str(max(1, replication - 1)),
    }
    kept = {} if spec.retention_ms is None else {"retention.ms": str(spec.retention_ms)}
    return {**common, **kept, **spec.config}


@cache
def specs() -> Mapping[str, TopicSpec]:
    """All topics by name, in the order of their names. Raises BadTopicFile."""
    return load(folder() / "topics")


def load(topics: Path) -> dict[str, TopicSpec]:
    """The topics of a folder of yaml files. Raises BadTopicFile."""
    files = sorted(topics.glob("*.yaml"))
    if not files:
        raise BadTopicFile(f"no topic files in {topics}: the installation is incomplete")
    return {path.stem: _read(path) for path in files}


def _read(path: Path) -> TopicSpec:
    try:
        fields = yaml.safe_load(path.read_text("utf-8"))
        return TopicSpec.model_validate({"name": path.stem, **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise BadTopicFile(f"{path.name}: {problems}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise BadTopicFile(f"{path.name}: {error}") from error


def topic_name(prefix: str, name: str, toolset: str | None = None) -> str:
    """The topic's name in the cluster: `topic_name("turnlog.", "tool-requests", "billing")` is `turnlog.tool-requests.billing`.

    Raises Refused for what Kafka would not take. A toolset's name has no dot, so that no topic reads as another toolset's.
    """
    spec = specs().get(name)
    if spec is None:
        raise Refused(f"there is no topic {name!r}; schemas/topics has {', '.join(specs())}")
    if spec.per_toolset != (toolset is not None):
        raise Refused(
            f"{name} is {'one topic per toolset: name it' if spec.per_toolset else 'not a topic per toolset'}"
        )
    if toolset is not None and not _TOOLSET.fullmatch(toolset):
        raise Refused(f"toolset {toolset!r}: 1 to 64 of A-Z a-z 0-9 _ -")
    full = f"{prefix}{name}" if toolset is None else f"{prefix}{name}.{toolset}"
    if len(full) > _LONGEST_NAME or not _NAME.fullmatch(full):
        raise Refused(f"topic name {full!r}: at most {_LONGEST_NAME} of A-Z a-z 0-9 . _ -")
    return full


def create_topics(
    admin: Admin,
    layout: Layout,
    *,
    names: Sequence[str] | None = None,
    timeout_s: float = 30.0,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Make what is missing, wait until it serves, return the names of the new ones. Can be called again and again.

    Existing topics are left as they are, but one with a partition count that the installation does not have is Refused: keys would go
    elsewhere. What else differs is for `check_topics`. Raises NotAuthorised naming the right, Refused, Retryable when the time is over.
    """
    wanted = {topic.name: (spec, topic) for spec, topic in layout.planned(names)}
    existing = admin.topics(list(wanted))
    for name, info in existing.items():
        _refuse_other_count(*wanted[name], info)
    missing = [topic for name, (_, topic) in wanted.items() if name not in existing]
    answers = admin.create_topics(missing, timeout_s=timeout_s)
    for topic in missing:
        if (
            problem := answers[topic.name]
        ) is not None and problem.code != "TOPIC_ALREADY_EXISTS":  # another was quicker
            raise _explained(problem, topic)
    _wait_until_they_serve(admin, missing, timeout_s, pause)
    return [topic.name for topic in missing if answers[topic.name] is None]


def _refuse_other_count(spec: TopicSpec, topic: NewTopic, info: TopicInfo) -> None:
    if spec.co_partitioned and info.partitions != topic.partitions:
        text = f"{topic.name} has {info.partitions} partitions, the installation {topic.partitions}"
        raise Refused(
            f"{text}: the count is fixed for its life, because keys would go to other partitions", "INVALID_PARTITIONS"
        )


def _explained(problem: LogError, topic: NewTopic) -> LogError:
    if isinstance(problem, NotAuthorised):
        return NotAuthorised(f"this principal may not create {topic.name}: it needs CREATE on the topic", problem.code)
    if problem.code == "INVALID_REPLICATION_FACTOR":
        text = f"{topic.name} needs {topic.replication} replicas and the cluster has fewer brokers: set TURNLOG_REPLICATION"
        return Refused(text, problem.code)
    return problem


def _wait_until_they_serve(
    admin: Admin, topics: Sequence[NewTopic], timeout_s: float, pause: Callable[[float], None]
) -> None:
    """Brokers learn of a new topic one after the other, and of its leaders later still: who comes before that is told that the topic
    is unknown, or has no leader."""
    until = time.monotonic() + timeout_s
    partitions = [Partition(topic.name, index) for topic in topics for index in range(topic.partitions)]
    while True:
        try:
            admin.ends(partitions)
        except (Retryable, UnknownTopic) as error:
            if time.monotonic() > until:
                raise Retryable(f"created, but not serving after {timeout_s:g} s: {error}", "_TIMED_OUT") from error
        else:
            return
        pause(0.05)
