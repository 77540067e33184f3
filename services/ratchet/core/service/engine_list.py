"""The engines that serve policies: which roles each of them serves, where its replicas are, how callers get in.

    RATCHET_ENGINES='[{"name": "small", "kind": "vllm", "urls": ["http://a:8000", "http://b:8000"],
                       "roles": ["support", "billing"], "api_key_env": "SMALL_KEY"},
                      {"name": "rest", "kind": "engine_local", "urls": ["http://c:8082"], "roles": ["*"]}]'

An engine has one base model, on each of its replicas, and serves the policies of many roles on it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from ratchet.bus.settings import without_user
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.engines import ANY_ROLE

EngineKind = Literal["vllm", "engine_local"]
LogprobsMode = Literal["processed_logprobs", "raw_logprobs"]


def _replica(url: str) -> str:
    """The URL of a replica, without a slash at its end. Raises `ValueError` for one that no client could use."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number, for example
        raise ValueError(f"{without_user(url)!r} is no URL of an engine, such as http://127.0.0.1:8000") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{without_user(url)!r} holds a user or a password: name the variable of a key (api_key_env)")
    if not usable or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no URL of an engine, such as http://127.0.0.1:8000")
    return url.strip().rstrip("/")


def _role(role: str) -> str:
    if role != ANY_ROLE and not ROLE.fullmatch(role):
        raise ValueError(f"{role!r} is neither a role nor *, which stands for every other one")
    return role


def _different(values: Sequence[str]) -> Sequence[str]:
    """Roles, or URLs, each once."""
    if repeated := _repeated(replica_name(value) or value for value in values):
        raise ValueError(f"{repeated} stands here twice")
    return values


def replica_name(url: str) -> str:
    """A replica as turns, metrics and logs name it: host, port and path."""
    return url.partition("://")[2]


ReplicaUrls = Annotated[
    tuple[Annotated[str, AfterValidator(_replica)], ...], Field(min_length=1), AfterValidator(_different)
]


class PriceSettings(BaseModel):
    """US dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(ge=0, allow_inf_nan=False)
    """Of the prompt."""
    completion: float = Field(ge=0, allow_inf_nan=False)
    """Of the answer, reasoning included."""
    cached_prompt: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the part of the prompt that the server had in its cache; unset: as the rest of the prompt."""


class EngineSettings(BaseModel):
    """An engine: replicas that serve the same policies on the same base model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Its name in turns, metrics and logs."""
    kind: EngineKind
    """What runs there."""
    urls: ReplicaUrls
    """Its replicas, each without `/v1`."""
    roles: Annotated[tuple[Annotated[str, AfterValidator(_role)], ...], Field(min_length=1), AfterValidator(_different)]
    """The roles whose policies it serves; `*` stands for every role that no engine names."""
    api_key_env: str | None = None
    """Name of the environment variable with its key (vLLM's `--api-key`), in each service that asks it; unset for an
    engine without keys."""
    api_key: SecretStr | None = None
    """The key itself, in the place of `api_key_env`."""
    logprobs_mode: LogprobsMode | None = None
    """vLLM's `--logprobs-mode`, where the engine's answers do not name the mode (those of `engine_local` do)."""
    price: PriceSettings | None = None
    """Price of the tokens of its policies, for the cost of their turns."""

    @model_validator(mode="after")
    def _one_key(self) -> EngineSettings:
        if self.api_key is not None and self.api_key_env is not None:
            raise ValueError("give api_key or api_key_env, not both")
        return self

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Its key; None for an engine without keys. Raises `ConfigError` when the environment lacks it."""
        if self.api_key_env is None:
            return self.api_key.get_secret_value() if self.api_key is not None else None
        return key_in(environment, self.api_key_env, f"engine {self.name}")


def key_in(environment: Mapping[str, str], variable: str, server: str) -> str:
    """The key of a server. Raises `ConfigError` when the environment lacks it."""
    key = environment.get(variable)
    if not key:
        raise ConfigError(f"{server}: the environment variable {variable} is not set")
    return key


def replica_urls(text: str) -> tuple[str, ...]:
    """The replicas that `RATCHET_ENGINE_URL` names: a URL, or several with commas between them. Raises `ValueError`."""
    urls = tuple(_replica(part) for part in text.split(",") if part.strip())
    if not urls:
        raise ValueError("it names no engine")
    _different(urls)
    return urls


def _checked_text(text: str) -> str:
    replica_urls(text)
    return text


ReplicasText = Annotated[str, AfterValidator(_checked_text)]
"""The replicas of one engine, as `replica_urls` reads them."""


def checked_engines(engines: tuple[EngineSettings, ...]) -> tuple[EngineSettings, ...]:
    """Engines that differ in names, replicas and roles. Raises `ValueError`."""
    for what, values in (
        ("the name {} stands for two engines", [engine.name for engine in engines]),
        ("two engines have the replica {}", [replica_name(url) for engine in engines for url in engine.urls]),
        ("two engines serve the role {}", [role for engine in engines for role in engine.roles]),
    ):
        if repeated := _repeated(values):
            raise ValueError(what.format(repeated))
    return engines


def engine_of(engines: Iterable[EngineSettings], role: str) -> EngineSettings:
    """The engine of a role: the one that names it, else the one that serves all others. Raises `Unavailable`."""
    by_role = {served: engine for engine in engines for served in engine.roles}
    engine = by_role.get(role) or by_role.get(ANY_ROLE)
    if engine is None:
        raise Unavailable(f"no engine serves the role {role}: name it, or *, in the roles of one (RATCHET_ENGINES)")
    return engine


def engine_kinds(engines: Iterable[EngineSettings], otherwise: EngineKind) -> Mapping[str, EngineKind]:
    """What serves each role, `*` for every other one; without a list it is one engine, of kind `otherwise`, for all."""
    return {role: engine.kind for engine in engines for role in engine.roles} or {ANY_ROLE: otherwise}


def _repeated(values: Iterable[str]) -> str | None:
    return next((value for value, count in Counter(values).items() if count > 1), None)
