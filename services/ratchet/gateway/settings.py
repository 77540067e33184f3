"""Settings of the gateway."""

from __future__ import annotations

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.kernel.settings import KernelSettings


class Settings(BaseSettings):
    """Read from `RATCHET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_GATEWAY_", frozen=True, populate_by_name=True)

    kernel: KernelSettings = Field(default_factory=KernelSettings)
    """What all services share."""
    port: int = 8080
    """Port of the OpenAI-compatible API; 0 picks a free one."""
    engine_url: str = Field(
        default="http://127.0.0.1:8082", validation_alias=AliasChoices("engine_url", "RATCHET_ENGINE_URL")
    )
    """The engine: vLLM, or `engine_local`."""
    engine_name: str = "engine_local"
    """What turns say of the engine that answered."""
    engine_timeout_s: float = 120.0
    """Longest wait for one answer."""
    api_keys: list[SecretStr] = Field(default_factory=list[SecretStr])
    """Bearer tokens that agents may use; without any, the gateway asks for none."""
    user_key: SecretStr | None = None
    """Key of the hash that turns `user` into `user_ref`; without it user ids are dropped."""
    body_limit: int = 8 * 1024 * 1024
    """Largest request body in bytes."""
    conversations: int = 20_000
    """Trajectories remembered between their calls."""
    lease_s: float = 20.0
    """A canary weight lapses after this long without an observed renewal."""
    queue_limit: int = 20_000
    """Turns kept in memory on their way to the broker."""
    spool_bytes: int = 512 * 1024 * 1024
    """Disk space for turns while the broker is away."""
    close_s: float = 3.0
    """How long a stop waits for the broker to take what is queued."""
