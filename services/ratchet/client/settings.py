"""Settings of the client."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import OptionalHttpAddress, ServiceSettings


class ClientSettings(ServiceSettings):
    """Read from `RATCHET_CLIENT_*`; the broker's address from `RATCHET_NATS_URL`.

    Addresses that are not set are those of the local stack in `RATCHET_DIR` (`.ratchet`), while one runs.
    """

    model_config = SettingsConfigDict(env_prefix="RATCHET_CLIENT_", frozen=True, populate_by_name=True)

    spool_bytes: int = 256 * 1024 * 1024
    """Disk space for messages while the broker is away."""
    close_s: float = 5.0
    """How long closing waits for the broker; the rest stays in the spool for the next start."""
    coordinator_url: OptionalHttpAddress = None
    """The first server that `train` asks while the broker is away; by default `RATCHET_COORDINATOR_URL`."""
    gateway_url: OptionalHttpAddress = None
    """The second one; by default `RATCHET_GATEWAY_URL`."""
    api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("RATCHET_CLIENT_API_KEY", "RATCHET_API_KEY", "api_key")
    )
    """Key for a coordinator and a gateway that ask for one: `train` needs the scope `train`."""
    nats_seed_file: Path | None = None
    """File with the key of the agent's user of the broker, in the place of `RATCHET_NATS_SEED_FILE`."""
    user_key: SecretStr | None = None
    """Key of the hash that turns user ids into `user_ref`; without it the client sends no user ids."""
