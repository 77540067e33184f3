"""The settings file: what it sets, what it leaves to the environment, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.canary_deployer.settings import Settings as CanarySettings
from ratchet.core.errors import ConfigError
from ratchet.core.service.settings import SharedSettings, checked, read
from ratchet.core.service.settings_file import SettingsFile, find_file, without_passwords
from ratchet.gateway.settings import Settings as GatewaySettings

ALL = """
log_level = "warning"
stream_max_bytes = {TURNS = 1000}

[gateway]
recorders = 2
aliases = {"gpt-4.1-mini" = "support"}
trusted_proxies = ["10.0.0.0/8"]
log_level = "debug"

[[gateway.upstreams]]
name = "openai"
base_url = "https://api.openai.com/v1"
api_key_env = "OPENAI_API_KEY"
models = {"*" = "*"}

[canary_deployer]
stages = [5, 25]
stage_min_s = 60
approval = true
"""


def written(folder: Path, text: str) -> dict[str, str]:
    """The environment of a service that reads a file with this text."""
    path = folder / "ratchet.toml"
    path.write_text(text)
    return {"RATCHET_CONFIG": str(path)}


def test_a_file_sets_what_each_service_has_and_what_all_share(tmp_path: Path) -> None:
    environment = written(tmp_path, ALL)
    gateway, canary = read(GatewaySettings, environment), read(CanarySettings, environment)
    assert (gateway.recorders, gateway.aliases, gateway.upstreams[0].name) == (2, {"gpt-4.1-mini": "support"}, "openai")
    assert [str(one) for one in gateway.trusted_proxies] == ["10.0.0.0/8"]
    assert (canary.stages, canary.stage_min_s, canary.approval) == ((5, 25), (60,), True)
    assert (gateway.shared.log_level, canary.shared.log_level) == ("debug", "warning")
    assert read(SharedSettings, environment).stream_max_bytes == {"TURNS": 1000}


def test_environment_wins_whatever_its_case_and_by_whichever_of_its_names(tmp_path: Path) -> None:
    environment = written(tmp_path, "[canary_deployer]\nengine_url = 'http://file:1'\napproval = true\n")
    assert read(CanarySettings, environment).engine_url == "http://file:1"
    environment |= {"RATCHET_ENGINE_URL": "http://environment:1", "ratchet_canary_approval": "false"}
    settings = read(CanarySettings, environment)
    assert (settings.engine_url, settings.approval) == ("http://environment:1", False)


def test_file_is_working_directorys_unless_variable_names_another_or_none(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text("log_level = 'debug'")
    (tmp_path / "other.toml").write_text("log_level = 'error'")
    assert find_file({}, tmp_path).content == {"log_level": "debug"}
    assert find_file({"RATCHET_CONFIG": str(tmp_path / "other.toml")}, tmp_path).content == {"log_level": "error"}
    assert find_file({"RATCHET_CONFIG": ""}, tmp_path) == SettingsFile()
    assert find_file({}, tmp_path / "elsewhere") == SettingsFile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gateway]\nupstreems = []", r"there is no setting gateway.upstreems in .*; did you mean upstreams\?"),
        (
            "[gateway]\nrecorders = 17",
            r"wrong setting gateway.recorders in .*: Input should be less than or equal to 16",
        ),
        ("log_level = 'loud'", r"wrong setting log_level in .*: Input should be 'debug'"),
        ("s3_secret_key = 'k'", r"s3_secret_key is a secret.*set RATCHET_S3_SECRET_KEY"),
        ("clickhouse_url = 'http://u:p@h:8123'", r"the password in clickhouse_url is a secret"),
        ("nats_url = 'nats://token@nats:4222'", r"the password in nats_url is a secret"),
        ("nats_url = 'ratchet:hush@nats:4222'", r"the password in nats_url is a secret"),
        ('keys = \'[{"name": "a", "key": "k", "scopes": ["admin"]}]\'', r"keys.key is a secret"),
        (
            "[[gateway.upstreams]]\nname = 'a'\nbase_url = 'http://u:p@h/v1'\nmodels = {}",
            r"the password in upstreams is a secret",
        ),
        ("[gateway]\napi_keys = ['k']", r"api_keys is a secret.*set RATCHET_GATEWAY_API_KEYS"),
        ("[[keys]]\nname = 'a'\nkey = 'k'\nscopes = ['admin']", r"keys.key is a secret.*set RATCHET_KEYS"),
        ("[[engines]]\nname = 'a'\napi_key = 'k'", r"engines.api_key is a secret"),
        ("clickhouse_timeout_s = 2026-01-01", r"no setting is a date"),
        ("gateway = 1", r"gateway in .* is not a table"),
        ("a = [", r"is no TOML"),
    ],
)
def test_what_a_file_must_not_say_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    environment = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        read(GatewaySettings, environment)


def test_a_refusal_shows_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(SharedSettings, written(tmp_path, "s3_secret_key = 'hush'\nclickhouse_url = 'http://u:hush@h'"))
    assert "hush" not in str(refused.value)


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.toml, which RATCHET_CONFIG names, cannot be read: No such file"):
        find_file({"RATCHET_CONFIG": str(tmp_path / "gone.toml")})


def test_faults_of_a_service_and_of_what_all_share_come_together() -> None:
    environment = {"RATCHET_LOG_LEVEL": "loud", "RATCHET_GATEWAY_RECORDERS": "0", "RATCHET_GATEWAY_RECORDER": "2"}
    faults, settings = checked(GatewaySettings, SettingsFile(), environment)
    assert settings is None
    assert [fault.split(":")[0] for fault in faults] == [
        "wrong setting RATCHET_LOG_LEVEL",
        "wrong setting RATCHET_GATEWAY_RECORDERS",
        "there is no variable RATCHET_GATEWAY_RECORDER; did you mean RATCHET_GATEWAY_RECORDERS?",
    ]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "RATCHET_GATEWAY_UPSTREEMS",
            "there is no variable RATCHET_GATEWAY_UPSTREEMS; did you mean RATCHET_GA",
        ),
        ("ratchet_gateway_recordrs", "did you mean RATCHET_GATEWAY_RECORDERS?"),
        ("RATCHET_GATEWAY_SOMETHING_ELSE", None),
        ("RATCHET_GATEWAY_MY_PLUGIN_TOKEN", None),
        ("RATCHET_GATEWAY_RECORDERS", None),
        ("RATCHET_GATEWAY_URL", None),
        ("RATCHET_CANARY_STAGEZ", None),
        ("RATCHET_GATEWAY_SERVICE_PORT_HTTP", None),
        ("RATCHET_GATEWAY_PORT_8080_TCP_ADDR", None),
    ],
)
def test_a_service_refuses_a_misspelt_setting_and_leaves_plug_ins_theirs(name: str, fault: str | None) -> None:
    faults, _ = checked(GatewaySettings, SettingsFile(), {name: "2"})
    assert (fault is None) == (not faults)
    assert fault is None or fault in faults[0]


def test_a_variable_with_a_key_that_a_setting_names_may_be_called_anything() -> None:
    upstream = '[{"name": "u", "base_url": "http://u/v1", "models": {}, "api_key_env": "RATCHET_GATEWAY_U_KEY"}]'
    environment = {"RATCHET_GATEWAY_UPSTREAMS": upstream, "RATCHET_GATEWAY_U_KEY": "k"}
    assert checked(GatewaySettings, SettingsFile(), environment)[0] == []


@pytest.mark.parametrize("value", ["tcp://10.0.0.1:8080", "udp://10.0.0.1:53"])
def test_kubernetes_address_of_a_port_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    environment = {"RATCHET_GATEWAY_PORT": value, "ratchet_gateway_recorders_port": value}
    assert checked(GatewaySettings, SettingsFile(), environment)[0] == []
    assert read(GatewaySettings, environment).port == 8080
    assert read(GatewaySettings, {**environment, **written(tmp_path, "[gateway]\nport = 9000")}).port == 9000
    monkeypatch.setenv("RATCHET_GATEWAY_PORT", value)
    assert GatewaySettings().port == 8080


def test_a_variable_without_our_prefix_sets_nothing() -> None:
    assert read(CanarySettings, {"PORT": "1", "ENGINE_URL": "http://other"}) == read(CanarySettings, {})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("x", "http://ratchet:p@ss@host:8123/x and nats://a:b@c", "http://***@host:8123/x and nats://***@c"),
        ("x", "http://ratchet:pa/ss?w#rd@host:8123/x", "http://***@host:8123/x"),
        ("x", "http://host:8123/x,http://u:a/b@other", "http://host:8123/x,http://***@other"),
        ("nats_url", "nats://token@nats:4222", "nats://***@nats:4222"),
        ("nats_url", "ratchet:p@ss@nats:4222", "***@nats:4222"),
        ("nats_url", "token@nats", "***@nats"),
        ("x", [{"urls": ["u:p@a", "http://b/c@d"]}], [{"urls": ["***@a", "http://b/c@d"]}]),
        ("health_urls", {"gateway": "u:p@a"}, {"gateway": "***@a"}),
        ("aliases", {"small": "support@3"}, {"small": "support@3"}),
    ],
)
def test_passwords_in_addresses_are_not_shown(name: str, value: object, shown: object) -> None:
    assert without_passwords(value, name) == shown
