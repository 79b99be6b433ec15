"""The interface of model providers, and the router that picks one by the name in `agent.model`.

A provider turns one `ModelRequest` into one `ModelAnswer` or `ModelFailure`. It keeps no state of a run, retries nothing and
decides nothing: an answer counts once it stands in the journal, a failure is retried by the rules' timers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.transcript import ModelRequest
from turnlog.models.errors import failure
from turnlog.models.http import HttpCaller
from turnlog.models.settings import UNKNOWN_SETTING, ProviderSettings, variable

Done = Callable[[ModelAnswer | ModelFailure], None]


class Ask(Protocol):
    """A question under way."""

    def cancel(self) -> None:
        """Give it up: `done` is not called after this returned, unless another thread is inside it already. Any thread, any
        number of times, also after the end. The provider may still have answered, and counted the tokens."""


class Provider(Protocol):
    """One model API. All methods from any thread."""

    def ask(self, request: ModelRequest, done: Done) -> Ask:
        """Ask, and return at once. Never raises (but for what `done` itself raises) and never blocks.

        `done` is called exactly once, unless the ask is cancelled or the provider closed before: at once, inside `ask` and
        in the caller's thread (a scripted model without latency, a request that cannot be made), or later from another
        thread. It must be quick: put the outcome on a queue. No order between asks. `agent.model_timeout_ms` bounds the
        time from sending to the whole answer. Asking again is a new call to the provider, with the same idempotency key.
        """

    def close(self) -> None:
        """Abandon all asks without calling `done`, free connections and threads. Twice is fine; an ask afterwards fails
        with `closed`."""


class ProviderKind(Protocol):
    """What makes the providers of one kind: the target of an entry point in the group `turnlog.models`."""

    def __call__(self, name: str, settings: Mapping[str, Any], http: HttpCaller) -> Provider:
        """A provider under `name`. `settings` are plain values as they came (a pydantic model of the kind validates them;
        ValueError or ValidationError is shown to whoever set them). `http` is shared and closed by the router."""


BUILT_IN: Final[dict[str, str]] = {
    "openai": "turnlog.models.openai_chat:make",
    "scripted": "turnlog.testing.scripted:make",
}
"""Kinds by name. Imported when configured, so a service does not pay for what it does not use."""

ENTRY_POINTS: Final = "turnlog.models"


class BadModelSettings(ValueError):
    """The settings name a kind that does not exist, or the kind refuses them. One line for whoever set them, no secrets."""


class AnsweredAsk:
    """An ask that is over before it is returned."""

    __slots__ = ()

    def cancel(self) -> None:
        """There is nothing to give up."""


ANSWERED: Final = AnsweredAsk()


class Providers:
    """The configured providers by name; itself a `Provider`. The set is fixed: configuration changes with a restart."""

    def __init__(self, providers: Mapping[str, Provider], http: HttpCaller | None = None) -> None:
        self._providers = dict(providers)
        self._http = http

    @classmethod
    def from_settings(cls, settings: Mapping[str, ProviderSettings]) -> Providers:
        """Make all providers, or raise BadModelSettings: a typo shows at the start, not at the first run. No provider is
        asked anything here, and no thread is started."""
        http = HttpCaller()
        return cls({name: _made(name, each, http) for name, each in settings.items()}, http)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._providers))

    def ask(self, request: ModelRequest, done: Done) -> Ask:
        model = request.agent.model
        name = model.partition("/")[0]
        provider = self._providers.get(name)
        if provider is None:
            done(self._unknown(model, name))
            return ANSWERED
        return provider.ask(request, done)

    def close(self) -> None:
        for provider in self._providers.values():
            provider.close()
        if self._http is not None:
            self._http.close()

    def _unknown(self, model: str, name: str) -> ModelFailure:
        """Names both ways out: another model, or a setting of the loop."""
        lower = name.lower()
        if lower in self._providers:
            remedy = f"providers are written in lower case: {lower}"
        elif close := get_close_matches(lower, self.names, 1):
            remedy = f"did you mean {close[0]}?"
        else:
            remedy = f"to add it, start the loop with {_ADDING.get(name, _ANOTHER).format(variable(name))}"
        known = ", ".join(self.names) or "none"
        return failure(
            "unknown_provider", f"model {model!r}: the loop has no provider {name!r} (configured: {known}); {remedy}"
        )


_ADDING: Final = {"openai": "{0}__API_KEY", "scripted": "{0}=true"}
_ANOTHER: Final = "{0}__KIND=openai and {0}__BASE_URL (a server of OpenAI's API)"


def _made(name: str, settings: ProviderSettings, http: HttpCaller) -> Provider:
    kind = settings.kind or name
    try:
        return _kind(kind)(name, _plain(settings), http)
    except ValidationError as error:
        raise BadModelSettings("; ".join(_said(name, kind, each) for each in error.errors())) from None
    except ValueError as error:
        raise BadModelSettings(f"{variable(name, *(['kind'] if settings.kind else []))}: {error}") from None


def _said(name: str, kind: str, error: ErrorDetails) -> str:
    """The variable and what is wrong with it. Never its value: that may be a key."""
    if error["type"] == UNKNOWN_SETTING:
        about = error["ctx"]
        return f"{variable(name, about['name'])}: kind {kind} has no such setting (it has: {about['known']})"
    return f"{variable(name, *map(str, error['loc']))}: {error['msg'].removeprefix('Value error, ')}"


def _plain(settings: ProviderSettings) -> dict[str, Any]:
    """The settings as they came, secrets still wrapped."""
    return {name: getattr(settings, name) for name in settings.model_fields_set}


def _kind(kind: str) -> ProviderKind:
    target = BUILT_IN.get(kind)
    if target is not None:
        module, _, attribute = target.partition(":")
        built_in: ProviderKind = getattr(importlib.import_module(module), attribute)
        return built_in
    added = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    if kind in added:
        loaded: ProviderKind = added[kind].load()
        return loaded
    known = ", ".join(sorted({*BUILT_IN, *added}))
    raise ValueError(f"there is no kind {kind!r} of model provider (there are: {known}); set its __KIND to one of them")
