"""Who needs which right, as kafka-acls.sh commands: least rights per role, from the writers and readers of schemas/topics.

A role without a principal gets no command. Tool teams are principals per toolset: each reads its own requests, writes results and
manifests, and reads nobody's results.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from turnlog.kafka.port import Refused
from turnlog.kafka.topics import Layout, Role, TopicSpec, specs, topic_name

_START = 'kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN_PROPERTIES" --add'
_ROLES: tuple[Role, ...] = ("upstream", "loop", "operator", "auditor")


class Grant(NamedTuple):
    """Operations on one resource. `prefixed`: on everything whose name begins so."""

    principal: str
    operations: tuple[str, ...]
    resource: str  # topic or group
    name: str
    prefixed: bool = False

    def command(self) -> str:
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        pattern = " --resource-pattern-type prefixed" if self.prefixed else ""
        who, what = shlex.quote(self.principal), shlex.quote(self.name)
        return f"{_START} --allow-principal {who} {operations} --{self.resource} {what}{pattern}"


def acl_commands(layout: Layout, principals: Mapping[Role, str], workers: Mapping[str, str] | None = None) -> list[str]:
    """The commands, in a fixed order. `principals` by role, `workers` by toolset, as Kafka writes them: `User:loop`. Raises Refused.

    $BOOTSTRAP and $ADMIN_PROPERTIES are left to the shell: credentials do not belong into generated text.
    """
    return [grant.command() for grant in grants(layout, principals, workers or {})]


def grants(layout: Layout, principals: Mapping[Role, str], workers: Mapping[str, str]) -> Sequence[Grant]:
    """The same as values."""
    if "worker" in principals:
        raise Refused("workers have a principal per toolset: name them by toolset")
    for principal in (*principals.values(), *workers.values()):
        if not principal.startswith("User:"):
            raise Refused(f"principal {principal!r}: Kafka writes it User:<name>")
    return [
        *(grant for role in _ROLES if role in principals for grant in _of_role(layout, role, principals[role])),
        *(grant for toolset in sorted(workers) for grant in _of_worker(layout, toolset, workers[toolset])),
    ]


def _of_role(layout: Layout, role: Role, principal: str) -> Iterator[Grant]:
    for spec in specs().values():
        if operations := _operations(spec, role):
            name = f"{layout.prefix}{spec.name}." if spec.per_toolset else topic_name(layout.prefix, spec.name)
            yield Grant(principal, operations, "topic", name, prefixed=spec.per_toolset)
    if role == "operator":
        # To create and check topics, and to set the positions of a group (`topics adopt`).
        rights = ("Create", "Describe", "DescribeConfigs", "AlterConfigs")
        yield Grant(principal, rights, "topic", layout.prefix, prefixed=True)
        yield Grant(principal, ("Read", "Describe", "Delete"), "group", layout.prefix, prefixed=True)
    else:
        # The loop's own group; for the others only what the client library asks for by itself.
        yield Grant(principal, ("Read",) if role == "loop" else ("Describe",), "group", layout.prefix, prefixed=True)


def _of_worker(layout: Layout, toolset: str, principal: str) -> Iterator[Grant]:
    for spec in specs().values():
        if operations := _operations(spec, "worker"):
            name = topic_name(layout.prefix, spec.name, toolset if spec.per_toolset else None)
            yield Grant(principal, operations, "topic", name)
    yield Grant(principal, ("Read",), "group", f"{layout.prefix}tools.{toolset}")


def _operations(spec: TopicSpec, role: Role) -> tuple[str, ...]:
    """Read and Write imply Describe."""
    held = {
        "Read": role in spec.readers,
        "Write": role in spec.writers,
        "Delete": role in spec.trimmed_by,
        "Create": role in spec.created_by,
    }
    return tuple(operation for operation, has in held.items() if has)
