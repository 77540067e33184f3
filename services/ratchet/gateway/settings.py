"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.gateway.domain.routing import LEASE_S
from ratchet.service.settings import SharedSettings


class UpstreamSettings(BaseModel):
    """Another server that answers when a policy cannot, or for a role that has none yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"[A-Za-z0-9_.-]{1,64}")
    """Its name in turns and metrics."""
    kind: str = "openai"
    """Whose API it speaks: `openai`, or an engine of another package (`ratchet plugins`)."""
    base_url: str
    """Down to `/v1`, as OpenAI's clients take it."""
    api_key_env: str | None = None
    """Name of the environment variable with its key; unset for a server without keys."""
    models: dict[str, str]
    """Role to the server's name of a model; `*` stands for every other role."""
    timeout_s: float = 120.0
    """Longest wait for one answer."""
    connect_timeout_s: float = 2.0
    """Longest wait for one connection."""


class Settings(BaseSettings):
    """Read from `RATCHET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_GATEWAY_", frozen=True, populate_by_name=True)

    shared: SharedSettings = Field(default_factory=SharedSettings)
    """What all services share."""
    port: int = 8080
    """Port of the OpenAI-compatible API; 0 picks a free one."""
    engine_url: str = Field(
        default="http://127.0.0.1:8082", validation_alias=AliasChoices("engine_url", "RATCHET_ENGINE_URL")
    )
    """The engine: vLLM, or `engine_local`."""
    engine_name: str = "engine_local"
    """The engine's name in turns."""
    engine_logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] | None = None
    """vLLM's `--logprobs-mode`, where the engine's answers do not name the mode (those of `engine_local` do). While
    neither does, calls at another temperature than 1 are not trainable."""
    engine_api_key: SecretStr | None = None
    """The engine's bearer token (vLLM's `--api-key`); unset for an engine without keys."""
    engine_timeout_s: float = 120.0
    """Longest wait for one answer."""
    engine_connect_timeout_s: float = 2.0
    """Longest wait for one connection to the engine; the gateway tries a refused or timed-out one three times."""
    upstreams: list[UpstreamSettings] = Field(default_factory=list[UpstreamSettings])
    """Servers that answer, in this order, when the policy's engine fails, and for roles without a policy. JSON."""
    coordinator_url: str | None = Field(
        default=None, validation_alias=AliasChoices("coordinator_url", "RATCHET_COORDINATOR_URL")
    )
    """The coordinator, which gets `/v1/jobs` and `/v1/status`; without it the gateway has no such routes."""
    keep_alive_s: float = 5.0
    """A stream begins after this long at the latest, and sends a comment as often; an earlier error has a status."""
    cache_bytes: int = 0
    """Bytes of the cache of answers at temperature 0; 0: no cache."""
    api_keys: list[SecretStr] = Field(default_factory=list[SecretStr])
    """Bearer tokens that agents may use; without any, here or in the file, the gateway lets every agent in."""
    api_keys_file: Path | None = None
    """File with further bearer tokens, one per line."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Most requests of one API key, or of one address where there are no keys; 0: no limit."""
    trusted_proxies: list[IPvAnyNetwork] = Field(default_factory=list[IPvAnyNetwork])
    """Addresses or networks of proxies in front of the gateway, whose `X-Forwarded-For` it trusts. A JSON list."""
    connections: int = Field(default=0, ge=0)
    """Most open connections; 0: half of the files that the process may open, so that each call finds one at the
    engine."""
    connections_per_address: int = Field(default=0, ge=0)
    """Most open connections of one address, also of a proxy; 0: half of all."""
    header_s: float = Field(default=10.0, gt=0)
    """How long a client may take to send its request's headers."""
    body_s: float = Field(default=60.0, gt=0)
    """How long a client may take to send its request's body."""
    grace_s: float = Field(default=1.0, ge=0)
    """How long a stop still lets calls in, while readiness already says that it stops."""
    drain_s: float = Field(default=120.0, ge=1, allow_inf_nan=False)
    """How long open calls may go on at a stop: as long as the longest answer, and less than the supervisor waits before
    it kills the process (`stop_grace_period` of compose)."""
    user_key: SecretStr | None = None
    """Key of the hash that turns `user` into `user_ref`; without it user ids are dropped."""
    body_limit: int = 8 * 1024 * 1024
    """Largest request body in bytes."""
    bodies_bytes: int = 512 * 1024 * 1024
    """Memory for the bodies of all open requests; beyond it requests get 503."""
    conversation_bytes: int = 256 * 1024 * 1024
    """Memory of all recorders for trajectories between their calls: a call of 8,000 tokens takes 32 KB, and a
    trajectory keeps eight."""
    arms_bytes: int = 64 * 1024 * 1024
    """Memory for the arms of trajectories between their calls: 1 KB each."""
    recorders: int = Field(default=1, ge=1, le=16)
    """Processes that redact, check and pack what agents and engines send."""
    recording_bytes: int = 64 * 1024 * 1024
    """Most bytes of requests and answers that wait for a recorder; beyond it a turn holds only its call's metadata."""
    lease_s: float = LEASE_S
    """A canary weight lapses after this long without an observed renewal."""
    queue_limit: int = 20_000
    """Turns kept in memory on their way to the broker."""
    spool_bytes: int = 512 * 1024 * 1024
    """Disk space for turns while the broker is away."""
    close_s: float = 3.0
    """How long a stop waits for the broker to take what is queued."""
