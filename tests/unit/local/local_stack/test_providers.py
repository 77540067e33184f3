"""`ratchet up --upstream`: the gateway's setting for a provider by its name, and for a server by its URL."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.core.errors import ConfigError
from ratchet.core.service.setting_names import OTHERS, unknown
from ratchet.core.service.settings import read
from ratchet.core.service.settings_file import SettingsFile
from ratchet.gateway.settings import Settings
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.preflight import planned
from ratchet.local.local_stack.providers import ADDRESS, PROVIDERS, upstream_environment, where_the_key_goes
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import StackRecord, write_record


@pytest.mark.parametrize("name", PROVIDERS)
def test_provider_is_asked_at_its_own_address_with_key_of_its_own_variable(name: str) -> None:
    (upstream,) = read(Settings, upstream_environment(name, {})).upstreams
    provider = PROVIDERS[name]
    assert (upstream.name, upstream.kind, upstream.base_url) == (name, provider.kind, provider.base_url)
    assert upstream.models == {"*": "*"}
    with pytest.raises(ConfigError, match=f"upstream {name}: the environment variable {provider.key_variable} is not"):
        upstream.key({})


def test_provider_at_another_address_gets_no_other_providers_key() -> None:
    environment = {"RATCHET_UPSTREAM_URL_OPENAI": "http://proxy/v1/", "RATCHET_UPSTREAM_URL": "http://other/v1"}
    (upstream,) = read(Settings, upstream_environment("openai", environment)).upstreams
    assert (upstream.base_url, upstream.api_key_env) == ("http://proxy/v1", "OPENAI_API_KEY")
    (upstream,) = read(Settings, upstream_environment("anthropic", environment)).upstreams
    assert upstream.base_url == PROVIDERS["anthropic"].base_url
    assert unknown([ADDRESS + name.upper() for name in PROVIDERS], set(OTHERS)) == []


@pytest.mark.parametrize(
    ("named", "environment", "sentence"),
    [
        ("openai", {}, "the gateway sends the key in OPENAI_API_KEY to https://api.openai.com/v1"),
        (
            "openai",
            {"RATCHET_UPSTREAM_URL_OPENAI": "http://u:hush@proxy/v1"},
            "the gateway sends the key in OPENAI_API_KEY to http://proxy/v1",
        ),
        (
            "http://a/v1",
            {"RATCHET_UPSTREAM_KEY": "k"},
            "the gateway sends the key in RATCHET_UPSTREAM_KEY to http://a/v1",
        ),
        ("http://a/v1", {}, ""),
    ],
)
def test_a_start_names_the_address_to_which_a_key_goes(named: str, environment: dict[str, str], sentence: str) -> None:
    assert where_the_key_goes(named, environment) == sentence


def test_the_command_prints_the_address_to_which_a_key_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    monkeypatch.setenv("RATCHET_UPSTREAM_URL_OPENAI", "http://proxy.example/v1")
    monkeypatch.setenv("RATCHET_XYZ", "1")
    assert main(["up", "--dry-run", "--free-ports", "--only", "gateway", "--upstream", "openai"]) == 0
    error = capsys.readouterr().err
    assert "the gateway sends the key in OPENAI_API_KEY to http://proxy.example/v1\n" in error
    assert "no setting is called RATCHET_XYZ" in error
    assert "hush" not in error


@pytest.mark.parametrize("from_file", [True, False])
def test_upstreams_beside_the_one_of_the_option_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    own = {"name": "own", "base_url": "http://own/v1", "models": {}}
    settings = StackSettings(tmp_path, free_ports=True, only=("gateway",), upstream="openai")
    if from_file:
        file = SettingsFile(Path("ratchet.toml"), {"gateway": {"upstreams": [own]}})
        settings, other = replace(settings, file=file), "gateway.upstreams in ratchet.toml"
    else:
        monkeypatch.setenv("RATCHET_GATEWAY_UPSTREAMS", json.dumps([own]))
        other = "RATCHET_GATEWAY_UPSTREAMS"
    with pytest.raises(ConfigError, match=rf"--upstream \(or .* and {other} are both given: keep one"):
        planned(settings)


def test_what_a_shell_takes_over_of_a_stack_keeps_no_upstream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"RATCHET_GATEWAY_UPSTREAMS": "[]", "RATCHET_GATEWAY_URL": "http://g"}
    record = StackRecord(
        pid=os.getpid(), born=birth(os.getpid()), stack_id="s", ready=True, services={}, stop_s=1, env=env
    )
    write_record(tmp_path, record)
    assert main(["env", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "export RATCHET_GATEWAY_URL=http://g\n"


@pytest.mark.parametrize(("environment", "key"), [({}, None), ({"RATCHET_UPSTREAM_KEY": "k"}, "k")])
def test_a_server_is_asked_at_its_url_and_gets_no_providers_key(environment: dict[str, str], key: str | None) -> None:
    environment = {"OPENAI_API_KEY": "another", **environment}
    (upstream,) = read(Settings, upstream_environment("http://127.0.0.1:8000/v1", environment)).upstreams
    assert (upstream.kind, upstream.base_url) == ("openai", "http://127.0.0.1:8000/v1")
    assert upstream.key(environment) == key


def test_an_unknown_provider_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no provider 'opnai'; did you mean openai\?; there are openai, anthropic"):
        upstream_environment("opnai", {})


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:99999", "http://x y/v1", "http://[x", "file:///etc/passwd"]
)
def test_a_start_with_an_url_of_no_server_is_refused_first(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        upstream_environment(url, {})
    with pytest.raises(ConfigError, match="is no address of a server"):
        upstream_environment("openai", {"RATCHET_UPSTREAM_URL_OPENAI": url})


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
