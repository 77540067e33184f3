"""Settings of the workflow service."""

from __future__ import annotations

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import HttpAddress, Port, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_WORKFLOWS_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_WORKFLOWS_", frozen=True, populate_by_name=True)

    port: Port = 8085
    """Port of the HTTP API; 0 picks a free one."""
    gateway_url: HttpAddress = Field(
        default="http://127.0.0.1:8080",
        validation_alias=AliasChoices("RATCHET_WORKFLOWS_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """The gateway, which gives planners and answers for models."""
    user_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_WORKFLOWS_USER_KEY", "RATCHET_GATEWAY_USER_KEY", "user_key"),
    )
    """Key of the hash of end users, the gateway's; without it no execution names one."""
    planning_model: str = ""
    """The worker, by its name in the registry, that plans where the planner's model is not confident. Empty: none."""
