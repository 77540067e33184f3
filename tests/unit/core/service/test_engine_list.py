"""The list of engines: what it says of each role, and how a wrong list is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.service.engine_list import EngineSettings, engine_of, replica_urls
from ratchet.core.service.settings import SharedSettings, read
from ratchet.gateway.settings import Settings as GatewaySettings

SMALL = {"name": "small", "kind": "vllm", "urls": ["http://a:8000", "http://b:8000"], "roles": ["support", "billing"]}
REST = {"name": "rest", "kind": "engine_local", "urls": ["http://c:8082/"], "roles": ["*"]}


def engines(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> tuple[EngineSettings, ...]:
    monkeypatch.setenv("RATCHET_ENGINES", json.dumps(entries))
    return read(SharedSettings).engines


def test_a_role_has_the_engine_that_names_it_else_that_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    both = engines(monkeypatch, SMALL, REST)
    assert [engine_of(both, role).name for role in ("support", "billing", "sales")] == ["small", "small", "rest"]
    assert engine_of(both, "sales").urls == ("http://c:8082",)


def test_a_role_that_no_engine_serves_is_named_with_what_an_operator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    small = engines(monkeypatch, SMALL)
    with pytest.raises(Unavailable, match=r"no engine serves the role sales: name it, or \*, .* \(RATCHET_ENGINES\)"):
        engine_of(small, "sales")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([SMALL, {**REST, "name": "small"}], "RATCHET_ENGINES: the name small stands for two engines"),
        ([SMALL, {**REST, "urls": ["http://b:8000/"]}], "two engines have the replica b:8000"),
        ([{**SMALL, "urls": ["http://a:1", "http://a:1/"]}], "a:1 stands here twice"),
        ([{**SMALL, "urls": ["http://a:1", "https://a:1"]}], "a:1 stands here twice"),
        ([SMALL, {**REST, "roles": ["billing", "*"]}], "two engines serve the role billing"),
        ([{**SMALL, "roles": ["*"]}, REST], r"two engines serve the role \*"),
        ([{**SMALL, "roles": ["support", "support"]}], "support stands here twice"),
        ([{**SMALL, "roles": ["two words"]}], "'two words' is neither a role nor"),
        ([{**SMALL, "roles": []}], r"\[0\]\[roles\]: Tuple should have at least 1 item"),
        ([{**SMALL, "urls": []}], r"\[0\]\[urls\]: Tuple should have at least 1 item"),
        ([{**SMALL, "kind": "sglang"}], r"\[0\]\[kind\]: Input should be 'vllm' or 'engine_local'"),
        ([{**SMALL, "urls": ["a:8000"]}], "'a:8000' is no URL of an engine, such as http"),
        ([{**SMALL, "urls": ["http://a:port"]}], "'http://a:port' is no URL of an engine"),
        ([{**SMALL, "urls": ["http://a:8000/?x=1"]}], "is no URL of an engine"),
        ([{**SMALL, "name": "no name"}], r"\[0\]\[name\]: String should match"),
        ([{**SMALL, "api_key": "k", "api_key_env": "K"}], "give api_key or api_key_env, not both"),
        ([{**SMALL, "model": "x"}], r"\[0\]\[model\]: Extra inputs"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        engines(monkeypatch, *entries)


def test_a_url_with_a_password_is_refused_and_the_password_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="holds a user or a password: name the variable of a key") as wrong:
        engines(monkeypatch, {**SMALL, "urls": ["http://me:hidden@a:8000"]})
    assert "hidden" not in str(wrong.value)


def test_a_list_that_is_no_json_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENGINES", "http://a:8000")
    with pytest.raises(ConfigError, match=r"^wrong setting RATCHET_ENGINES: it is not JSON"):
        read(SharedSettings)


def test_a_key_comes_from_the_variable_that_the_engine_names(monkeypatch: pytest.MonkeyPatch) -> None:
    (engine,) = engines(monkeypatch, {**SMALL, "api_key_env": "SMALL_KEY"})
    monkeypatch.delenv("SMALL_KEY", raising=False)
    with pytest.raises(ConfigError, match="engine small: the environment variable SMALL_KEY is not set"):
        engine.key()
    monkeypatch.setenv("SMALL_KEY", "secret")
    assert engine.key() == "secret"
    (keyless,) = engines(monkeypatch, SMALL)
    assert keyless.key() is None


def test_engine_without_a_list_serves_all_roles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_URL", "http://a:8000, http://b:8000/")
    monkeypatch.setenv("RATCHET_ENGINE_API_KEY", "key")
    monkeypatch.setenv("RATCHET_ENGINE_KIND", "vllm")
    for settings in (read(GatewaySettings), read(DeployerSettings)):
        (engine,) = settings.engines
        assert (engine.urls, engine.roles, engine.kind) == (("http://a:8000", "http://b:8000"), ("*",), "vllm")
        assert engine.key() == "key"


def test_one_engine_is_known_by_its_kind_and_its_logprobs_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_KIND", "vllm")
    unknown = [read(GatewaySettings).engines, read(DeployerSettings).engines]
    assert [(one.name, one.logprobs_mode) for (one,) in unknown] == [("vllm", None)] * 2
    monkeypatch.setenv("RATCHET_ENGINE_LOGPROBS_MODE", "processed_logprobs")
    assert read(GatewaySettings).logprob_modes == {"vllm": "processed"}
    (engine,) = read(DeployerSettings).engines
    assert engine.logprobs_mode == "processed_logprobs"


def test_a_list_takes_the_place_of_the_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    both = engines(monkeypatch, SMALL, REST)
    monkeypatch.setenv("RATCHET_ENGINE_URL", "http://d:8000")
    assert tuple(read(GatewaySettings).engines) == tuple(read(DeployerSettings).engines) == both


@pytest.mark.parametrize("kind", [GatewaySettings, DeployerSettings])
@pytest.mark.parametrize("url", ["", "engine:8082", "http://a:1,http://a:1", "ftp://a"])
def test_a_wrong_address_of_the_one_engine_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, kind: type[GatewaySettings | DeployerSettings], url: str
) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_URL", url)
    with pytest.raises(ConfigError, match=r"^wrong setting RATCHET_(CANARY_)?ENGINE_URL: "):
        read(kind)


def test_an_engine_and_an_upstream_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENGINES", json.dumps([REST]))
    upstream = {"name": "rest", "base_url": "http://u/v1", "models": {"*": "*"}}
    monkeypatch.setenv("RATCHET_GATEWAY_UPSTREAMS", json.dumps([upstream]))
    with pytest.raises(ConfigError, match="rest: an engine and an upstream have the same name"):
        read(GatewaySettings)


def test_replicas_keep_their_order() -> None:
    assert replica_urls("https://b.example/path,http://[::1]:8000") == ("https://b.example/path", "http://[::1]:8000")
