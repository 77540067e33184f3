"""Settings from the environment, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from ratchet.canary_deployer.settings import Settings as CanarySettings
from ratchet.errors import ConfigError
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.service.settings import EnvironmentSettings, SharedSettings, read


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


def test_a_wrong_address_gives_no_password_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_NATS_URL", "nats://ratchet:secret@nats:port")
    with pytest.raises(ConfigError) as wrong:
        read(SharedSettings)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4222", "nats", "nats://ratchet:s@cret@nats:4222", "tls://nats.example", "ws://nats:8080"]
)
def test_every_form_of_an_address_that_the_broker_library_takes_is_one(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RATCHET_NATS_URL", url)
    assert read(SharedSettings).nats_url == url


def test_the_level_of_the_log_may_be_written_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_LOG_LEVEL", "WARNING")
    assert read(SharedSettings).log_level == "warning"
