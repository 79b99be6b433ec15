"""The recorded agents as Turnlog agents, and how they are published."""

from collections.abc import Iterable, Sequence

from examples.airline_retail.recording import Recording, load_tools, prompts_for
from turnlog.client.links import Append, Receipt, Sender
from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.kafka.port import Cluster

PROVIDER = "recorded"
"""The name of the model provider: TURNLOG_MODELS__RECORDED__BASE_URL says where it is."""
MODEL_TIMEOUT_MS = 30_000
MODEL_ATTEMPTS = 20
ACKNOWLEDGED_S = 60.0


def agents_for(recordings: Sequence[Recording]) -> list[AgentSpec]:
    """One agent for each system prompt that the recordings refer to."""
    prompts = prompts_for(recordings)
    wanted = sorted({(recording.domain, recording.prompt_ref) for recording in recordings})
    return [_agent(domain, reference, prompts[reference]) for domain, reference in wanted]


def agent_name(recording: Recording) -> str:
    """The agent that plays a recording: domain and prompt, since another prompt is another agent."""
    return f"{recording.domain}-{recording.prompt_ref[:8]}"


def _agent(domain: str, reference: str, prompt: str) -> AgentSpec:
    """Tools are named one by one and not as `airline/*`: then a start before all of them are announced is refused, and not
    pinned to half of them."""
    return AgentSpec(
        name=f"{domain}-{reference[:8]}",
        version=reference,
        instructions=prompt,
        model=f"{PROVIDER}/gpt-4o",
        tools=tuple(f"{domain}/{tool['function']['name']}" for tool in load_tools(domain)),
        conversation=True,
        turn_limit=0,
        model_attempts=MODEL_ATTEMPTS,
        model_backoff_ms=100,
        model_timeout_ms=MODEL_TIMEOUT_MS,
    )


def publish(agents: Iterable[AgentSpec], cluster: Cluster, codec: Codec, prefix: str) -> None:
    """Returns when the log has the agents; loops learn of them a moment later. Raises LogError, NotAcknowledged."""
    sender = Sender(cluster, "airline-retail-agents")
    try:
        receipts = []
        for agent in agents:
            receipt = Receipt(f"agent {agent.name}")
            value = codec.encode(agent)
            sender.append(Append(f"{prefix}agents", agent.name.encode(), value), receipt.settle, 0.0)
            receipts.append(receipt)
        for receipt in receipts:
            receipt.wait(ACKNOWLEDGED_S)
    finally:
        sender.close()
