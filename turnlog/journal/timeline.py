"""Events in words: one line an event, for people. Texts of models, tools and users come out cut and free of control characters."""

from __future__ import annotations

import unicodedata

from turnlog.core.events import (
    CallRequested,
    CallSettled,
    Cancel,
    CommandNote,
    Event,
    Input,
    InputAwaited,
    ModelAnswer,
    ModelFailure,
    Outcome,
    Refusal,
    Resume,
    RetrySet,
    RunCancelled,
    RunFailed,
    RunStopped,
    RunSucceeded,
    Start,
    Timer,
    TurnStarted,
)  # fmt: skip

TEXT_CHARS = 160


def clean(text: str, most: int = TEXT_CHARS) -> str:
    """The text on one line, at most `most` characters, with nothing in it that a terminal would obey."""
    head = text[: most + 1].replace("\r\n", "\n").replace("\n", " ⏎ ").replace("\t", " ")
    safe = "".join(c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else "�" for c in head)
    return safe if len(safe) <= most else safe[: most - 1] + "…"


def quoted(text: str, most: int = TEXT_CHARS) -> str:
    return f"“{clean(text, most)}”"


def short_key(key: str) -> str:
    """A call key without its run: `t0:c1:0f3a…`."""
    return key.partition(":")[2] or key


def counted(number: int, word: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def words(event: Event, most: int = TEXT_CHARS) -> str:
    """What the event says, without its kind, time and place."""
    match event.payload:
        case Start(agent=agent, menu=menu, input=text, labels=labels):
            said = "no input yet" if text is None else quoted(text, most)
            named = "".join(f" {clean(k)}={clean(v)}" for k, v in labels)
            return f"agent {clean(agent.name)} {clean(agent.version)}, {counted(len(menu), 'tool')}, {said}{named}"
        case Input(text=text, final=final):
            return quoted(text, most) + (" (final)" if final else "")
        case Cancel(reason=reason):
            return clean(reason, most)
        case Resume(turns=turns):
            return f"for {counted(turns, 'more turn')}" if turns else "with its own turn limit"
        case CommandNote(command=command, reason=reason):
            return f"{clean(command)} changes nothing: {clean(reason, most)}"
        case ModelAnswer() as answer:
            return _answer(answer, most)
        case ModelFailure(error=error, message=message):
            return f"{clean(error)}: {clean(message, most)}"
        case Outcome(status=status, content=content, error=error):
            kind = f" {clean(error)}" if error else ""
            return f"{clean(status)}{kind}: {clean(content, most)}"
        case Timer(timer=timer):
            return clean(timer)
        case Refusal(reason=reason):
            return clean(reason, most)
        case _:
            return _derived(event, most)


def _answer(answer: ModelAnswer, most: int) -> str:
    parts = [] if answer.text is None else [quoted(answer.text, most)]
    parts += [f"{clean(call.tool, 80)}({clean(call.arguments, 80)})" for call in answer.calls]
    used = answer.usage
    tokens = f" [{used.input_tokens} + {used.output_tokens} tokens]" if used.input_tokens or used.output_tokens else ""
    return (" ".join(parts) or "nothing") + tokens


def _derived(event: Event, most: int) -> str:
    match event.payload:
        case TurnStarted(request_digest=digest, messages=messages):
            return f"asks the model with {counted(messages, 'message')}, request {digest[:12]}"
        case CallRequested(topic=topic):
            return f"{_call(event)} → {clean(topic)}"
        case RetrySet():
            return f"{_call(event)} again later" if event.tool else "asks the model again later"
        case CallSettled(status=status, content=content):
            return f"{_call(event)} {clean(status)}" + ("" if content is None else f": {clean(content, most)}")
        case InputAwaited():
            return "waits for its user"
        case RunSucceeded(reason=reason, answer=answer):
            return clean(reason) + ("" if answer is None else f": {quoted(answer, most)}")
        case RunFailed(reason=reason, message=message):
            return f"{clean(reason)}: {clean(message, most)}"
        case RunCancelled(reason=reason) | RunStopped(reason=reason):
            return clean(reason)
    return ""


def _call(event: Event) -> str:
    attempt = "" if event.attempt is None or event.attempt == 1 else f", attempt {event.attempt}"
    return f"{clean(event.tool or '?', 80)}{attempt}"
