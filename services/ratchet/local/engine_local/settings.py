"""Settings of the local engine."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import Port, ServiceSettings

BODY_LIMIT = 8 * 1024 * 1024
"""Largest request body in bytes: the longest conversation that a context of 128,000 tokens takes, several times."""
MAX_REQUESTS = 256
"""Answers waiting or being computed (a request has `n`): eight full batches, which a client's patience outlasts."""
MAX_ROWS = 32
"""Sequences of one policy computed together: beyond it a step on a CPU takes longer in proportion."""
PREFILL_TOKENS = 4096
"""Prompt tokens computed in one pass, padding included: more would hold up running sequences."""
LINGER_S = 0.01
"""How long a request waits for others to be computed together with: less than a step takes."""
THREADS = 1
"""CPU threads of one forward pass; on cores that other processes use, more than one is slower."""


class Settings(ServiceSettings):
    """Read from `RATCHET_ENGINE_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_ENGINE_", frozen=True)

    port: Port = 8082
    """Port of the HTTP API."""
    prefix_tokens: int = Field(default=32_768, ge=0)
    """Tokens per policy whose keys and values are kept for the next call of the same conversation."""
    api_key: SecretStr | None = None
    """Bearer token that every route under /v1 asks for; unset: none is asked for, and loopback is the only guard."""
    resident_policies: int = Field(default=6, ge=1)
    """Policies kept in memory; the least recently used one makes room."""
    resident_bytes: int = Field(default=4 * 1024**3, ge=1)
    """Bytes of the weights of these policies, without what adapters share with their base model; a policy that makes
    them more lets those go that were not used for longest. Those that are answering stay, and two in any case: a line
    of the log warns of it."""
