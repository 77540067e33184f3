"""Settings from the environment, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from ratchet.canary_deployer.settings import Settings as CanarySettings
from ratchet.client.settings import ClientSettings
from ratchet.console.settings import Settings as ConsoleSettings
from ratchet.core.errors import ConfigError
from ratchet.core.service.settings import EnvironmentSettings, SharedSettings, read
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.engine_local.settings import Settings as EngineSettings
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings


@pytest.mark.parametrize(
    ("kind", "variable", "value", "message"),
    [
        (SharedSettings, "RATCHET_HEALTH_PORT", "x", "RATCHET_HEALTH_PORT: Input should be a valid integer"),
        (SharedSettings, "RATCHET_LOG_LEVEL", "verbose", "RATCHET_LOG_LEVEL: Input should be 'debug', 'info'"),
        (GatewaySettings, "RATCHET_HEALTH_PORT", "x", "RATCHET_HEALTH_PORT: Input should be a valid integer"),
        (GatewaySettings, "RATCHET_GATEWAY_PORT", "x", "RATCHET_GATEWAY_PORT: Input should be a valid integer"),
        (
            GatewaySettings,
            "RATCHET_GATEWAY_UPSTREAMS",
            "x",
            "RATCHET_GATEWAY_UPSTREAMS: it is not JSON: Expecting",
        ),
        (
            GatewaySettings,
            "RATCHET_GATEWAY_UPSTREAMS",
            "[{}]",
            r"RATCHET_GATEWAY_UPSTREAMS\[0\]\[name\]: Field",
        ),
        (CanarySettings, "RATCHET_CANARY_STAGES", "50", r"RATCHET_CANARY_\*: stage_min_s needs one value, or one"),
        (CanarySettings, "RATCHET_DEPLOYER_PORT", "x", "RATCHET_DEPLOYER_PORT: Input should be a valid integer"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: type[EnvironmentSettings], variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^wrong setting {message}") as caught:
        read(kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:notaport", "nats://", "nats://[::1:4222", "http://nats:4222", "nats://:4"]
)
def test_an_address_that_can_never_work_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("RATCHET_NATS_URL", url)
    with pytest.raises(ConfigError, match=r"^wrong setting RATCHET_NATS_URL: .* is no address of a broker"):
        read(SharedSettings)


PORTS = {
    "RATCHET_HEALTH_PORT": SharedSettings,
    "RATCHET_GATEWAY_PORT": GatewaySettings,
    "RATCHET_COORDINATOR_PORT": CoordinatorSettings,
    "RATCHET_DEPLOYER_PORT": CanarySettings,
    "RATCHET_CONSOLE_PORT": ConsoleSettings,
    "RATCHET_ENGINE_PORT": EngineSettings,
}


@pytest.mark.parametrize("variable", PORTS)
def test_a_port_that_does_not_exist_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for port in ("70000", "-1"):
        monkeypatch.setenv(variable, port)
        with pytest.raises(ConfigError, match=rf"^wrong setting {variable}: Input should be (less|greater) than or"):
            read(PORTS[variable])
    for port in ("0", "65535"):
        monkeypatch.setenv(variable, port)
        read(PORTS[variable])


ADDRESSES = {
    "RATCHET_CLICKHOUSE_URL": SharedSettings,
    "RATCHET_S3_ENDPOINT": SharedSettings,
    "RATCHET_GATEWAY_COORDINATOR_URL": GatewaySettings,
    "RATCHET_CANARY_GATEWAY_URL": CanarySettings,
    "RATCHET_CANARY_COORDINATOR_URL": CanarySettings,
    "RATCHET_CANARY_ADVERTISED_URL": CanarySettings,
    "RATCHET_CONSOLE_COORDINATOR_URL": ConsoleSettings,
    "RATCHET_CONSOLE_DEPLOYER_URL": ConsoleSettings,
    "RATCHET_CONSOLE_GATEWAY_URL": ConsoleSettings,
    "RATCHET_CLIENT_COORDINATOR_URL": ClientSettings,
    "RATCHET_CLIENT_GATEWAY_URL": ClientSettings,
}


@pytest.mark.parametrize("variable", ADDRESSES)
@pytest.mark.parametrize("url", ["file:///etc/passwd", "localhost:8080", "http://", "http://u:secret@host:port"])
def test_url_not_of_http_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, variable: str, url: str) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(ConfigError, match=f"^wrong setting {variable}: .* is no address of a server") as wrong:
        read(ADDRESSES[variable])
    assert "secret" not in str(wrong.value)


def test_an_empty_address_stands_for_no_server_where_there_need_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_COORDINATOR_URL", "")
    assert not read(GatewaySettings).coordinator_url


def test_the_address_of_a_warehouse_may_hold_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_CLICKHOUSE_URL", "https://user:word@warehouse:8443")
    assert read(SharedSettings).clickhouse_url == "https://user:word@warehouse:8443"


def test_a_wrong_address_gives_no_password_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_NATS_URL", "nats://ratchet:secret@nats:port")
    with pytest.raises(ConfigError) as wrong:
        read(SharedSettings)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4222", "nats", "nats://ratchet:s@cret@nats:4222", "tls://nats.example", "ws://nats:8080"]
)
def test_broker_address_takes_every_form_of_the_library(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("RATCHET_NATS_URL", url)
    assert read(SharedSettings).nats_url == url


def test_the_level_of_the_log_may_be_written_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_LOG_LEVEL", "WARNING")
    assert read(SharedSettings).log_level == "warning"
