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


def test_the_level_of_the_log_may_be_written_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_LOG_LEVEL", "WARNING")
    assert read(SharedSettings).log_level == "warning"
