"""Agents and tool manifests, followed from their compacted topics; and what a start command is resolved to."""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.loop.holes import readable_end
from turnlog.codec import Codec, RegistryRefused, RegistryUnavailable, Unreadable
from turnlog.core.agents import STRATEGIES, AgentSpec, MenuEntry
from turnlog.core.definitions import agent_problem, manifest_problem, pattern_problem
from turnlog.core.events import Start
from turnlog.core.limits import utf8_size
from turnlog.core.records import StartRun, ToolManifest, ToolRequest
from turnlog.kafka.port import LogError, Partition, Reader, Received

_log = logging.getLogger(__name__)

MENU_BYTES = 512 * 1024
"""Instructions and menu of one run together: they stand in its first step."""
REJECTED = 1_000
"""Keys of rejected manifests that are remembered, to tell a start that was refused for one why."""


class Tables:
    """The newest definition of every agent and tool. Reads its topics whole, then follows them; `caught_up` once the ends seen
    at the start are reached. Entries that are unreadable or define nothing go to `reject`, and the entry before them stays."""

    def __init__(
        self, reader: Reader, codec: Codec, agents_topic: str, manifests_topic: str, requests_prefix: str,
        reject: Callable[[Received, str, str], None],
    ) -> None:  # fmt: skip
        self._reader = reader
        self._codec = codec
        self._agents_topic = agents_topic
        self._manifests_topic = manifests_topic
        self._requests_prefix = requests_prefix
        self._reject = reject
        self._agents: dict[str, AgentSpec] = {}
        self._tools: dict[str, dict[str, ToolManifest]] = {}
        self._rejected: dict[str, None] = {}
        self._behind: dict[Partition, int] = {}
        self._resolved: dict[tuple[AgentSpec, int], tuple[MenuEntry, ...] | str] = {}
        self._version = 0
        self._announced: set[str] = set()

    def begin(self, partitions: dict[str, int]) -> None:
        """Start to follow; `partitions` by topic. Raises LogError."""
        offsets = {}
        for topic in (self._agents_topic, self._manifests_topic):
            for index in range(partitions[topic]):
                partition = Partition(topic, index)
                start, end = self._reader.bounds(partition)
                offsets[partition] = start
                end = readable_end(self._reader, partition, start, end)
                if end > start:
                    self._behind[partition] = end
        self._reader.follow(offsets)

    @property
    def caught_up(self) -> bool:
        return not self._behind

    def poll(self) -> int:
        """Take in what is new; returns how many records."""
        try:
            records = self._reader.poll(0.0)
        except LogError as problem:
            _log.warning("agents and manifests: %s", problem)
            return 0
        for record in records:
            self._take(record)
            partition = Partition(record.topic, record.partition)
            end = self._behind.get(partition)
            if end is not None and record.offset + 1 >= end:
                del self._behind[partition]
        if records:
            self._version += 1
            self._resolved.clear()
        return len(records)

    def _take(self, record: Received) -> None:
        key = (record.key or b"").decode("utf-8", "replace")
        of_tool = record.topic != self._agents_topic
        take = self._take_tool if of_tool else self._take_agent
        rejected: tuple[str, str] | None
        try:
            problem = take(key, record.value)
            rejected = None if problem is None else ("bad_definition", problem)
        except Unreadable as unreadable:
            rejected = (unreadable.reason, unreadable.detail)
        if of_tool:
            self._remember(key, rejected is not None)
        if rejected is not None:
            self._reject(record, *rejected)

    def _remember(self, key: str, rejected: bool) -> None:
        self._rejected.pop(key, None)
        if rejected:
            self._rejected[key] = None
            if len(self._rejected) > REJECTED:
                del self._rejected[next(iter(self._rejected))]

    def _take_agent(self, key: str, value: bytes | None) -> str | None:
        """Why it is not taken, or None."""
        if value is None:
            self._agents.pop(key, None)
            return None
        agent = self._codec.decode(value, AgentSpec)
        problem = agent_problem(key, agent)
        if problem is None:
            self._agents[key] = agent
        return problem

    def _take_tool(self, key: str, value: bytes | None) -> str | None:
        """Why it is not taken, or None."""
        toolset, _, tool = key.partition("/")
        if value is None:
            self._tools.get(toolset, {}).pop(tool, None)
            return None
        manifest = self._codec.decode(value, ToolManifest)
        problem = manifest_problem(key, manifest, self._requests_prefix)
        if problem is None:
            self._tools.setdefault(toolset, {})[tool] = manifest
            self._announce(manifest.topic)
        return problem

    def _announce(self, topic: str) -> None:
        """Requests to this topic carry the registry's id from now on; where it cannot be asked, the file's, which Turnlog reads as well."""
        if topic in self._announced:
            return
        self._announced.add(topic)
        try:
            self._codec.announce(topic, ToolRequest)
        except (RegistryUnavailable, RegistryRefused) as problem:
            _log.warning("requests to %s keep the file's schema id: %s", topic, problem)

    def resolve(self, command_id: str, start: StartRun, traceparent: str | None = None) -> Start | str:
        """The start with its agent and menu pinned, or why it cannot be: a sentence for whoever sent it."""
        agent = self._agents.get(start.agent)
        if agent is None:
            known = ", ".join(sorted(self._agents)[:20]) or "none"
            return f"no agent named {start.agent!r} (known: {known}); define it with `turnlog agents apply`"
        if start.agent_version is not None and start.agent_version != agent.version:
            return f"agent {agent.name!r} is at version {agent.version!r}, not {start.agent_version!r}"
        if agent.strategy not in STRATEGIES:
            return f"agent {agent.name!r} wants strategy {agent.strategy!r}; this build has {', '.join(STRATEGIES)}"
        menu = self._menu(agent)
        if isinstance(menu, str):
            return menu
        return Start(
            command_id,
            agent,
            menu,
            (),
            start.input,
            start.labels,
            start.turn_limit,
            start.tool_call_budget,
            start.deadline_ms,
            traceparent,
        )

    def _menu(self, agent: AgentSpec) -> tuple[MenuEntry, ...] | str:
        """Cached until a table changes, so that equal runs share one menu."""
        cached = self._resolved.get((agent, self._version))
        if cached is None:
            cached = self._resolved[(agent, self._version)] = self._resolve_menu(agent)
        return cached

    def _resolve_menu(self, agent: AgentSpec) -> tuple[MenuEntry, ...] | str:
        found: dict[str, MenuEntry] = {}
        for pattern in agent.tools:
            toolset, _, name = pattern.partition("/")
            tools = self._tools.get(toolset, {})
            problem = pattern_problem(pattern, self._tools, self._rejected)
            if problem is not None:
                return problem
            chosen = list(tools.values()) if name == "*" else [tools[name]]
            for manifest in sorted(chosen, key=lambda m: m.tool):
                other = found.setdefault(manifest.tool, _entry(manifest))
                if other.toolset != manifest.toolset:
                    return f"tool {manifest.tool!r} is in toolsets {other.toolset!r} and {manifest.toolset!r}: name one of them"
        size = utf8_size(agent.instructions) + sum(
            utf8_size(e.parameters) + utf8_size(e.description) for e in found.values()
        )
        if size > MENU_BYTES:
            return f"instructions and tools of agent {agent.name!r} have {size} bytes, at most {MENU_BYTES} are allowed"
        return tuple(found.values())


def _entry(m: ToolManifest) -> MenuEntry:
    return MenuEntry(
        m.tool, m.toolset, m.version, m.topic, m.description, m.parameters, m.takes_text, m.ends_run, m.idempotent, m.timeout_ms,
        m.attempts, m.backoff_ms,
    )  # fmt: skip
