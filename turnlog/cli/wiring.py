"""What the verbs work with: settings, cluster, codec, client, readers; each made at its first use and closed at the end."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import note
from turnlog.client import Client
from turnlog.client.tables import newest
from turnlog.core.decide import Validate
from turnlog.journal.reading import JournalReader
from turnlog.kafka.port import Admin, Cluster, Partition, Reader, Received

if TYPE_CHECKING:
    from turnlog.codec import Codec
    from turnlog.settings import Settings

BOOTSTRAP_VARIABLE = "TURNLOG_KAFKA__BOOTSTRAP_SERVERS"
CONNECT_S = 3.0


class Session:
    """One invocation's connection to an installation. Not thread-safe; `close` when done."""

    def __init__(self, bootstrap: str | None = None, prefix: str | None = None, cluster: Cluster | None = None) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._given = cluster
        self._found: str | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    @cached_property
    def settings(self) -> Settings:
        """From the environment and the options. Without a named cluster, the embedded broker that runs here is taken."""
        from turnlog.client.connect import embedded
        from turnlog.settings import Settings, from_environment

        given = {} if self._prefix is None else {"topic_prefix": self._prefix}
        settings = from_environment(Settings, **given)
        self._found = embedded(settings) if self._bootstrap is None else self._bootstrap
        if self._found is not None:
            settings.kafka["bootstrap.servers"] = self._found
        return settings

    @property
    def by_default(self) -> bool:
        """Whether nobody named the cluster: no option, no variable, no broker that runs or ran in this folder."""
        from turnlog.settings import DEFAULT_BOOTSTRAP

        taken = self.settings.kafka["bootstrap.servers"]
        named = self._given is not None or self._found is not None or BOOTSTRAP_VARIABLE in os.environ
        return not named and taken == DEFAULT_BOOTSTRAP

    @cached_property
    def cluster(self) -> Cluster:
        """Reached for within three seconds, so that a cluster that is not there is told at once. Raises CliError."""
        if self._given is not None:
            return self._given
        from turnlog.kafka.client import KafkaCluster

        knock(self.settings.kafka["bootstrap.servers"])
        return KafkaCluster(self.settings.kafka)

    @cached_property
    def codec(self) -> Codec:
        from turnlog.client.connect import codec_for

        return codec_for(self.settings)

    @cached_property
    def client(self) -> Client:
        client = Client(self.cluster, self.codec, self.prefix, name="turnlog-cli")
        self._stack.callback(client.close)
        return client

    @cached_property
    def reader(self) -> Reader:
        reader = self.cluster.reader("turnlog-cli")
        self._stack.callback(reader.close)
        return reader

    @cached_property
    def admin(self) -> Admin:
        admin = self.cluster.admin()
        self._stack.callback(admin.close)
        return admin

    @cached_property
    def journal(self) -> JournalReader:
        topic = self.topic("journal")
        return JournalReader(self.reader, self.codec, topic, len(self.partitions("journal")))

    @property
    def prefix(self) -> str:
        return self.settings.topic_prefix

    def topic(self, name: str) -> str:
        """A topic's full name."""
        return self.prefix + name

    def partitions(self, name: str) -> list[Partition]:
        """All partitions of one of our topics. Raises CliError if it does not exist."""
        topic = self.topic(name)
        info = self.admin.topics([topic]).get(topic)
        if info is None:
            raise CliError(
                f"the cluster has no topic {topic!r}",
                "create what is missing: turnlog topics create; or check TURNLOG_TOPIC_PREFIX",
                Exit.UNREACHABLE,
            )
        return [Partition(topic, index) for index in range(info.partitions)]

    def table(self, name: str) -> dict[bytes, Received]:
        """The last record of each key of a compacted topic."""
        return newest(self.reader, self.partitions(name))

    @cached_property
    def validate(self) -> Validate:
        """The schema check that the loop uses, so that verifying says the same."""
        from turnlog.schema_check import check_arguments

        return check_arguments

    def load_blob(self, digest: str) -> str:
        """A snapshot from the blob directory. Raises BadHistory for one that is not there or damaged."""
        from turnlog.blobs import DirectoryBlobs

        folder = Path(os.environ.get("TURNLOG_BLOBS") or self.settings.state_dir / "blobs")
        return DirectoryBlobs(folder).get(digest).decode()


def session(context: typer.Context) -> Session:
    """The invocation's session."""
    found = context.find_object(Session)
    if found is None:
        raise RuntimeError("commands run below `main.root`, which makes the session")
    return found


def acting_session(context: typer.Context) -> Session:
    """The session of a verb that changes something: in a cluster that nobody named, it says which one that is. Raises CliError."""
    here = session(context)
    if here.by_default:
        _ = here.cluster  # one that is not there is told by its own error, and nothing is changed
        address = here.settings.kafka["bootstrap.servers"]
        note(
            f"no cluster is named and none was started in this folder: taking {address} ({BOOTSTRAP_VARIABLE} names another)"
        )
    return here


def tool_group(prefix: str, toolset: str) -> str:
    """The consumer group of a toolset's workers."""
    return f"{prefix}tools.{toolset}"


def knock(bootstrap: str) -> None:
    """See that somebody listens at one of the addresses. Raises CliError."""
    problems = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().removeprefix("[").rpartition(":")
        host = host.rsplit("://", 1)[-1].removesuffix("]")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except ValueError:
            problems.append(f"{address} (that is no HOST:PORT)")
        except OSError as problem:
            problems.append(f"{address} ({problem.strerror or problem})")
        else:
            return
    raise CliError(
        f"no broker answers at {', '.join(problems)}",
        f"start one with `turnlog up`, or name yours: {BOOTSTRAP_VARIABLE}=host:9092",
        Exit.UNREACHABLE,
    )
