"""What a run is pinned to when it starts: the agent's definition and the menu of tools, resolved once and recorded."""

from __future__ import annotations

from typing import Final, NamedTuple

STRATEGIES: Final = ("single_shot",)
"""Loop strategies that this build knows."""


class AgentSpec(NamedTuple):
    """A named, versioned definition of an agent. Times in milliseconds; 0 as a bound means "none"."""

    name: str
    version: str
    instructions: str
    model: str
    """`<provider>/<model>`, e.g. `openai/gpt-4o` or `scripted/bench`; the part before the first slash names the provider."""
    model_settings: str = "{}"
    """JSON object handed to the provider (temperature and the like)."""
    tools: tuple[str, ...] = ()
    """What the agent may use: `<toolset>/<tool>` or `<toolset>/*`."""
    strategy: str = "single_shot"
    conversation: bool = False
    """True: after each answer the run waits for its user. False: the first answer without calls ends the run."""
    parallel_calls: int = 1
    """How many calls of one turn may be under way at once."""
    tool_errors: str = "feed_back"
    """`feed_back`: a failing tool is a result the model reads. `fail`: it ends the run."""
    turn_limit: int = 50
    tool_call_budget: int = 0
    deadline_ms: int = 0
    model_attempts: int = 5
    model_backoff_ms: int = 500
    model_timeout_ms: int = 120_000


class MenuEntry(NamedTuple):
    """One tool as the run may call it: pinned from its manifest at the start."""

    name: str
    toolset: str
    version: str
    topic: str
    """Where its requests go."""
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    """JSON Schema of the arguments, as text."""
    takes_text: bool = False
    """The argument text is handed over as it is, JSON or not."""
    ends_run: bool = False
    """Its success ends the run."""
    idempotent: bool = True
    timeout_ms: int = 60_000
    attempts: int = 3
    backoff_ms: int = 200


class Usage(NamedTuple):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )
