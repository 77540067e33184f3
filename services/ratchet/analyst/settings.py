"""Settings of the analyst."""

from __future__ import annotations

from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import Port, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_ANALYST_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_ANALYST_", frozen=True, populate_by_name=True)

    port: Port = 8086
    """Port of the HTTP API; 0 picks a free one."""
