"""Settings of the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import FROM_JSON, HttpAddress, Port, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_CONSOLE_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_CONSOLE_", frozen=True, populate_by_name=True)

    port: Port = 8084
    """Port of the pages and of the console's API; 0 picks a free one."""
    coordinator_url: HttpAddress = Field(
        default="http://127.0.0.1:8081",
        validation_alias=AliasChoices("RATCHET_CONSOLE_COORDINATOR_URL", "RATCHET_COORDINATOR_URL", "coordinator_url"),
    )
    """Where what users ask about jobs and policies is passed on to."""
    deployer_url: HttpAddress = Field(
        default="http://127.0.0.1:8083",
        validation_alias=AliasChoices("RATCHET_CONSOLE_DEPLOYER_URL", "RATCHET_DEPLOYER_URL", "deployer_url"),
    )
    """The same for rollouts."""
    gateway_url: HttpAddress = Field(
        default="http://127.0.0.1:8080",
        validation_alias=AliasChoices("RATCHET_CONSOLE_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """The same for calls of policies and feedback."""
    workflows_url: HttpAddress | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_CONSOLE_WORKFLOWS_URL", "RATCHET_WORKFLOWS_URL", "workflows_url"),
    )
    """The same for workflows; unset where nothing runs them."""
    analyst_url: HttpAddress | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_CONSOLE_ANALYST_URL", "RATCHET_ANALYST_URL", "analyst_url"),
    )
    """The same for patterns and plans; unset where no analyst runs."""
    oidc_secret: SecretStr | None = None
    """The secret of our client at the issuer of RATCHET_OIDC; unset for a public client."""
    health_urls: Annotated[Mapping[str, HttpAddress], *FROM_JSON] = Field(default_factory=dict[str, str])
    """Where the services say whether they are ready. JSON: `{"gateway": "http://gateway:9100"}`, by the service's name;
    `ratchet up` and the containers set it."""
