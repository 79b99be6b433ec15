"""The transcript of a run and the model request built from it.

Each message is written once in the journal; the transcript is a fold of the events. The digest of a request is incremental:
one hash over the digests of what never changes (instructions, menu, model) and the running digest of the messages.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from turnlog.core.agents import AgentSpec, MenuEntry
from turnlog.core.events import RecordedCall
from turnlog.core.ids import EMPTY_DIGEST, chain_digest


class UserMessage(NamedTuple):
    text: str


class AssistantMessage(NamedTuple):
    text: str | None
    calls: tuple[RecordedCall, ...] = ()


class ToolMessage(NamedTuple):
    """The result of one call, addressed to the provider's id of that call. `failed`: an error text, tainted by its tool;
    a provider fences it where its wire format has no mark of its own."""

    provider_id: str
    tool: str
    content: str
    failed: bool


TranscriptMessage = UserMessage | AssistantMessage | ToolMessage


class ModelRequest(NamedTuple):
    """Everything a provider needs to ask. `messages` is a snapshot: it never changes after it was handed over."""

    run_id: str
    turn: int
    attempt: int
    agent: AgentSpec
    menu: tuple[MenuEntry, ...]
    messages: tuple[TranscriptMessage, ...]
    digest: str


@lru_cache(maxsize=256)
def base_digest(agent: AgentSpec, menu: tuple[MenuEntry, ...]) -> str:
    """Digest of the parts of every request of a run that do not change while it runs. Cached: many runs share agent and menu."""
    digest = chain_digest(EMPTY_DIGEST, "turnlog request 1", agent.model, agent.model_settings, agent.instructions)
    for entry in menu:
        digest = chain_digest(
            digest, entry.name, entry.description, entry.parameters, "text" if entry.takes_text else "json"
        )
    return digest


def message_digest(previous: str, message: TranscriptMessage) -> str:
    """The running digest after one more message."""
    if isinstance(message, ToolMessage):
        kind = "failed" if message.failed else "tool"
        return chain_digest(previous, kind, message.provider_id, message.tool, message.content)
    if isinstance(message, AssistantMessage):
        parts = [part for call in message.calls for part in call]
        return chain_digest(previous, "assistant", message.text, *parts)
    return chain_digest(previous, "user", message.text)
