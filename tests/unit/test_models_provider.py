"""Settings from the environment, and the router between providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnlog.core.agents import AgentSpec
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.transcript import ModelRequest, UserMessage
from turnlog.models import provider
from turnlog.models.http import HttpCaller
from turnlog.models.openai_chat import OpenAiChat
from turnlog.models.provider import BadModelSettings, Provider, Providers
from turnlog.models.settings import ModelsSettings, ProviderSettings
from turnlog.testing.scripted import ScriptedProvider, echo


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TURNLOG_", env_nested_delimiter="__")
    models: ModelsSettings = {}


def configured(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Mapping[str, ProviderSettings]:
    for name, value in environment.items():
        monkeypatch.setenv(f"TURNLOG_MODELS__{name}", value)
    return Settings().models


def ask(providers: Provider, model: str) -> ModelAnswer | ModelFailure:
    outcomes: list[ModelAnswer | ModelFailure] = []
    agent = AgentSpec("a", "1", "", model)
    providers.ask(ModelRequest("r", 0, 1, agent, (), (UserMessage("hi"),), "0" * 64), outcomes.append)
    (outcome,) = outcomes
    return outcome


def test_providers_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(
        monkeypatch,
        OPENAI__API_KEY="sk-secret-1",
        LOCAL__KIND="openai",
        LOCAL__BASE_URL="http://127.0.0.1:1/v1",
        LOCAL__CONCURRENCY="3",
        LOCAL__HEADERS='{"x-key": "secret-2"}',
        SCRIPTED="true",
    )
    providers = Providers.from_settings(settings)
    assert providers.names == ("local", "openai", "scripted")
    assert ask(providers, "scripted/echo") == ModelAnswer("hi", (), "stop", "echo", "echo-r-0")
    assert "secret" not in repr(settings)
    providers.close()


def test_nothing_is_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured(monkeypatch) == {}
    assert configured(monkeypatch, SCRIPTED="false") == {}


def test_an_unknown_provider_is_a_failure_that_names_the_known() -> None:
    providers = Providers({"b": ScriptedProvider(echo), "a": ScriptedProvider(echo)})
    problem = ask(providers, "open/gpt")
    assert isinstance(problem, ModelFailure)
    assert (problem.error, problem.retryable) == ("unknown_provider", False)
    assert "(configured: a, b)" in problem.message
    assert "(configured: none)" in str(ask(Providers({}), "x"))


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("acme/m", "TURNLOG_MODELS__ACME__KIND=openai and TURNLOG_MODELS__ACME__BASE_URL"),
        ("openai/m", "TURNLOG_MODELS__OPENAI__API_KEY"),
        ("Local/m", "in lower case: local"),
        ("locl/m", "did you mean local?"),
    ],
)
def test_an_unknown_provider_says_what_helps(model: str, remedy: str) -> None:
    assert remedy in str(ask(Providers({"local": ScriptedProvider(echo)}), model))


def test_a_provider_set_to_some_word_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="TURNLOG_MODELS__X is true, false or JSON"):
        configured(monkeypatch, X="openai")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (
            {"X__KIND": "nope"},
            "TURNLOG_MODELS__X__KIND: there is no kind 'nope' of model provider (there are: openai, scripted",
        ),
        ({"X__API_KEY": "k"}, "TURNLOG_MODELS__X: there is no kind 'x'"),
        (
            {"MINE__KIND": "openai", "MINE__FOO": "secret"},
            "TURNLOG_MODELS__MINE__FOO: kind openai has no such setting (it has: API_KEY, BASE_URL, CONCURRENCY, HEADERS, KIND, ",
        ),
        ({"OPENAI__BASE_URL": "host/v1"}, "give an http:// or https:// URL"),
        (
            {"OPENAI__CONCURRENCY": "0"},
            "TURNLOG_MODELS__OPENAI__CONCURRENCY: Input should be greater than or equal to 1",
        ),
        (
            {"OPENAI__API_KEY": "sk-secret\u00e9"},
            "TURNLOG_MODELS__OPENAI__API_KEY: has characters that cannot stand in an HTTP header",
        ),
        ({"OPENAI__HEADERS": '{"a": "secret\\nb: c"}'}, "TURNLOG_MODELS__OPENAI__HEADERS: has characters"),
        ({"SCRIPTED__FAIL": "2"}, "TURNLOG_MODELS__SCRIPTED__FAIL: Input should be less than or equal to 1"),
    ],
)
def test_mistakes_show_at_the_start(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], complaint: str
) -> None:
    with pytest.raises(BadModelSettings) as raised:
        Providers.from_settings(configured(monkeypatch, **environment))
    assert complaint in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_installed_package_adds_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, settings: Mapping[str, Any], http: HttpCaller) -> Provider:
        assert (name, settings["region"]) == ("mine", "north")
        return ScriptedProvider(lambda _: ModelAnswer("from a package"))

    class Added:
        name = "strange"

        def load(self) -> Any:
            return make

    monkeypatch.setattr(provider, "entry_points", lambda group: [Added()] if group == "turnlog.models" else [])
    providers = Providers.from_settings(configured(monkeypatch, MINE__KIND="strange", MINE__REGION="north"))
    assert ask(providers, "mine/m") == ModelAnswer("from a package")


def test_a_defect_while_building_a_request_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    providers = Providers.from_settings({"openai": ProviderSettings()})
    outcomes: list[ModelAnswer | ModelFailure] = []
    request = ModelRequest("r", 0, 1, AgentSpec("a", "1", "", "openai/m"), (), (None,), "0" * 64)  # type: ignore[arg-type]
    providers.ask(request, outcomes.append)
    assert [each.error for each in outcomes if isinstance(each, ModelFailure)] == ["internal_error"]
    assert "could not be built" in caplog.text


def test_no_thread_before_the_first_question() -> None:
    http = HttpCaller()
    assert isinstance(provider._made("openai", ProviderSettings(), http), OpenAiChat)
    assert http._thread is None
    http.close()
