"""`ratchet up --upstream`: the gateway's setting for a provider by its name, and for a server by its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import ConfigError
from ratchet.gateway.settings import Settings
from ratchet.local_stack.preflight import planned
from ratchet.local_stack.providers import PROVIDERS, upstream_environment
from ratchet.local_stack.settings import StackSettings
from ratchet.service.settings import read


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_is_asked_at_its_own_address_with_the_key_of_its_own_variable(name: str) -> None:
    (upstream,) = read(Settings, upstream_environment(name, {})).upstreams
    provider = PROVIDERS[name]
    assert (upstream.name, upstream.kind, upstream.base_url) == (name, provider.kind, provider.base_url)
    assert upstream.models == {"*": "*"}
    with pytest.raises(ConfigError, match=f"upstream {name}: the environment variable {provider.key_variable} is not"):
        upstream.key({})


def test_a_provider_may_have_another_address() -> None:
    (upstream,) = read(Settings, upstream_environment("openai", {"RATCHET_UPSTREAM_URL": "http://proxy/v1/"})).upstreams
    assert (upstream.base_url, upstream.api_key_env) == ("http://proxy/v1", "OPENAI_API_KEY")


@pytest.mark.parametrize(("environment", "key"), [({}, None), ({"RATCHET_UPSTREAM_KEY": "k"}, "k")])
def test_a_server_is_asked_at_its_url_and_gets_no_providers_key(environment: dict[str, str], key: str | None) -> None:
    environment = {"OPENAI_API_KEY": "another", **environment}
    (upstream,) = read(Settings, upstream_environment("http://127.0.0.1:8000/v1", environment)).upstreams
    assert (upstream.kind, upstream.base_url) == ("openai", "http://127.0.0.1:8000/v1")
    assert upstream.key(environment) == key


def test_an_unknown_provider_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no provider 'opnai'; did you mean openai\?; there are openai, anthropic"):
        upstream_environment("opnai", {})


def test_a_start_without_the_key_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = StackSettings(tmp_path / "state", free_ports=True, only=("gateway",), upstream="openai")
    with pytest.raises(ConfigError, match="gateway: upstream openai: the environment variable OPENAI_API_KEY"):
        planned(settings)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    programs = {program.name: program for program in planned(settings).programs}
    assert "https://api.openai.com/v1" in programs["gateway"].env["RATCHET_GATEWAY_UPSTREAMS"]
    assert not (tmp_path / "state").exists()
