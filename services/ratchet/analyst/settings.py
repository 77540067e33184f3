"""Settings of the analyst."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import FROM_JSON, ApiKey, HttpAddress, Port, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_ANALYST_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_ANALYST_", frozen=True, populate_by_name=True)

    port: Port = 8086
    """Port of the HTTP API; 0 picks a free one."""
    coordinator_url: HttpAddress = Field(
        default="http://127.0.0.1:8081",
        validation_alias=AliasChoices("RATCHET_ANALYST_COORDINATOR_URL", "RATCHET_COORDINATOR_URL", "coordinator_url"),
    )
    """The coordinator, which trainings of plans are asked of."""
    deployer_url: HttpAddress = Field(
        default="http://127.0.0.1:8083",
        validation_alias=AliasChoices("RATCHET_ANALYST_DEPLOYER_URL", "RATCHET_DEPLOYER_URL", "deployer_url"),
    )
    """The deployer, which registers the bundles of plans, and takes their canaries back."""
    key: ApiKey | None = None
    """API key with `train` and `operate`, with which approved plans are carried out. Without it the services' own key,
    which may look and do nothing, so that where keys are asked for approved plans wait."""
    self_approved: Annotated[list[str], *FROM_JSON] = Field(default_factory=list[str])
    """Roles whose low-risk plans run without an approval. A JSON list, such as `["support"]`."""
