"""Settings of the gateway."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    model_validator,
)
from pydantic_settings import SettingsConfigDict

from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.rules.arms import ROLE, parse_model
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.engine_list import (
    EngineSettings,
    LogprobsMode,
    PriceSettings,
    ReplicasText,
    key_in,
    replica_urls,
)
from ratchet.core.service.settings import ApiKey, OptionalHttpAddress, Port, ServiceSettings
from ratchet.dialects.answers import MODES
from ratchet.dialects.requests import MODEL_CHARACTERS, is_model_name
from ratchet.gateway.domain.prices import ANY, Price, Prices
from ratchet.gateway.domain.routing import LEASE_S

MIB = 1024 * 1024


def _model(name: str) -> str:
    parse_model(name)
    return name


def _askable(name: str) -> str:
    if not is_model_name(name):
        raise ValueError(f"{name!r} cannot name a model: use printable text of at most {MODEL_CHARACTERS} letters")
    return name


ModelText = Annotated[str, AfterValidator(_askable)]
"""A model as an agent may name it."""


_NEWER_LIMIT = (".openai.com", ".openai.azure.com")
"""Servers with models that refuse `max_tokens`: they take `max_completion_tokens`."""


class UpstreamSettings(BaseModel):
    """Another server that answers when a policy cannot, or for a role that has none yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"[A-Za-z0-9_.-]{1,64}")
    """Its name in turns and metrics."""
    kind: str = "openai"
    """Whose API it speaks: `openai`, `anthropic`, or an engine of another package (`ratchet plugins`)."""
    base_url: str
    """Down to `/v1`, as OpenAI's clients take it."""
    api_key_env: str | None = None
    """Name of the environment variable with its key; unset for a server without keys."""
    models: dict[str, str]
    """Role to the server's name of a model. As a role `*` stands for every other one, as a model for the one that the
    agent asked for."""
    apis: list[Literal["responses", "messages"]] = Field(default_factory=list[Literal["responses", "messages"]])
    """The APIs that the server speaks beside chat and text completions: calls in others are translated to chat."""
    prices: dict[str, PriceSettings] = Field(default_factory=dict[str, PriceSettings])
    """Server's name of a model to the price of its tokens; `*` stands for every other one. Without one a turn has no
    cost."""
    timeout_s: float = 600.0
    """Longest wait for an answer: for the first event of one that streams, and between two events if comments come."""
    idle_s: float = 120.0
    """Longest silence within a stream: neither an event nor a comment."""
    connect_timeout_s: float = 2.0
    """Longest wait for one connection."""

    @property
    def known_models(self) -> frozenset[str]:
        """Those that it is set to answer with; `*` among them: whatever it is asked for."""
        return frozenset((*self.models.values(), *(model for model in self.prices if model != ANY)))

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Its key; None for a server without keys. Raises `ConfigError` when the environment lacks it."""
        return None if self.api_key_env is None else key_in(environment, self.api_key_env, f"upstream {self.name}")


class FilterSettings(BaseModel):
    """The filters around the calls of one role, by name (`ratchet plugins`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: list[str] = Field(default_factory=list[str])
    """Of what users write."""
    tool_results: list[str] = Field(default_factory=list[str])
    """Of what tools give back."""
    answers: list[str] = Field(default_factory=list[str])
    """Of what the model writes, and of the arguments of its tool calls."""
    flag_only: bool = False
    """Every verdict is a label, and nothing is replaced or blocked."""
    on_failure: Literal["closed", "open"] = "closed"
    """Whether a call is refused, or goes on, where a filter raises, answers no verdict, or takes more than 10 s."""

    @property
    def names(self) -> Sequence[str]:
        """All of them, each once."""
        return [*dict.fromkeys([*self.requests, *self.tool_results, *self.answers])]

    def of(self, kind: str) -> Sequence[str]:
        """Those that see texts of a kind."""
        return {"request": self.requests, "tool_result": self.tool_results, "answer": self.answers}[kind]


class Settings(ServiceSettings):
    """Read from `RATCHET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_GATEWAY_", frozen=True, populate_by_name=True)

    port: Port = 8080
    """Port of the OpenAI-compatible API; 0 picks a free one."""
    shares_port: bool = False
    """Whether other gateways of this user may listen on the port too: Linux spreads connections among them. The local
    stack sets it (`ratchet up --gateways 2`)."""
    engine_url: ReplicasText = Field(
        default="http://127.0.0.1:8082", validation_alias=AliasChoices("RATCHET_ENGINE_URL", "engine_url")
    )
    """The engine, vLLM or `engine_local`; of several replicas their URLs with commas between them. `RATCHET_ENGINES`
    takes the place of this and of `engine_logprobs_mode`, `engine_api_key` and `engine_price`."""
    engine_logprobs_mode: LogprobsMode | None = Field(
        default=None, validation_alias=AliasChoices("RATCHET_ENGINE_LOGPROBS_MODE", "engine_logprobs_mode")
    )
    """vLLM's `--logprobs-mode`, where the engine's answers do not name the mode (those of `engine_local` do). While
    neither does, calls at another temperature than 1 are not trainable."""
    engine_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_ENGINE_API_KEY", "engine_api_key"),
    )
    """The engine's bearer token (vLLM's `--api-key`); unset for an engine without keys."""
    engine_price: PriceSettings | None = None
    """Price of the tokens of Ratchet's own policies, for the cost of their turns. JSON."""
    engine_timeout_s: float = 600.0
    """Longest wait for an answer: for the first event of one that streams, and between two events if comments come."""
    upstreams: list[UpstreamSettings] = Field(default_factory=list[UpstreamSettings])
    """Servers that answer, in this order, when the policy's engine fails, and for roles without a policy. JSON."""
    aliases: dict[ModelText, Annotated[str, AfterValidator(_model)]] = Field(default_factory=dict[str, str])
    """Names that agents may use for a role or `role@version`, say `gpt-4.1-mini` for `support`, which may then begin
    behind an upstream. JSON."""
    roles: list[Annotated[str, Field(pattern=ROLE.pattern)]] = Field(default_factory=list[str])
    """Roles that may begin behind an upstream, before they have a policy, as those may that `filters` names. A JSON
    list."""
    other_role: str = Field(default=DEFAULT_ROLE, pattern=ROLE.pattern)
    """The role of calls that ask for any other name of a model: agents cannot create roles."""
    service_roles: dict[str, Annotated[str, Field(pattern=ROLE.pattern)]] = Field(default_factory=dict[str, str])
    """JSON: the roles of services that send telemetry, by `service.name` (`{"checkout-agent": "support"}`); all others
    have `other_role`."""
    coordinator_url: OptionalHttpAddress = Field(
        default=None, validation_alias=AliasChoices("coordinator_url", "RATCHET_COORDINATOR_URL")
    )
    """The coordinator, which gets `/v1/jobs` and `/v1/status`; without it the gateway has no such routes."""
    span_exporter_endpoint: OptionalHttpAddress = Field(
        default=None, validation_alias=AliasChoices("RATCHET_SPAN_EXPORTER_ENDPOINT", "span_exporter_endpoint")
    )
    """Where the span exporter sends. With it engines continue a trace from the gateway's span, which is there then."""
    filters: dict[Annotated[str, Field(pattern=rf"^({ROLE.pattern}|\*)$")], FilterSettings] = Field(
        default_factory=dict[str, FilterSettings]
    )
    """JSON: the filters around calls, by role (`{"support": {"tool_results": ["injection"]}}`); `*` stands for every
    other role. Without any, nothing is filtered."""
    cache_bytes: int = 0
    """Bytes of the cache of answers at temperature 0; 0: no cache."""
    api_keys: list[ApiKey] = Field(default_factory=list[ApiKey])
    """API keys of agents, besides those of `ratchet keys`: they may use every role (`infer:*` and `feedback:*`)."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Most requests of one API key that has no limit of its own, or of one address where there are no keys; 0: no
    limit."""
    trusted_proxies: list[IPvAnyNetwork] = Field(default_factory=list[IPvAnyNetwork])
    """Addresses or networks of proxies in front of the gateway, whose `X-Forwarded-For` it trusts. A JSON list."""
    connections: int = Field(default=0, ge=0)
    """Most open connections; 0: half of the files that the process may open, so that each call finds one at the
    engine."""
    connections_per_address: int = Field(default=0, ge=0)
    """Most open connections of one address, also of a proxy; 0: half of all."""
    grace_s: float = Field(default=1.0, ge=0)
    """How long a stop still lets calls in, while readiness already says that it stops."""
    drain_s: float = Field(default=120.0, ge=1, allow_inf_nan=False)
    """How long open calls may go on at a stop: as long as the longest answer, and less than the supervisor waits before
    it kills the process (`stop_grace_period` of compose)."""
    cors_origins: list[Annotated[str, Field(pattern=r"https?://[^/,*\s]+")]] = Field(default_factory=list[str])
    """Sites whose pages may call the gateway from a browser (`https://app.example`). A JSON list."""
    user_key: SecretStr | None = None
    """Key of the hash that turns the end user (`user`, `safety_identifier`, `metadata.user_id`) into `user_ref`;
    without it no turn names one. Starts hash user or session with it, else with `RATCHET_SERVICE_KEY`."""
    body_limit: int = 32 * 1024 * 1024
    """Largest request body in bytes, unpacked; Anthropic's API takes as many. A body of this size keeps other calls
    waiting for .08 s if it is text and images, and for .2 s at worst; a larger one for as much longer."""
    recorders: int = Field(default=1, ge=1, le=16)
    """Processes that redact, check and pack what agents and engines send."""
    recording_bytes: int = 64 * 1024 * 1024
    """Most bytes of requests and answers that wait for a recorder; beyond it a turn holds only its call's metadata."""
    streams_bytes: int = 256 * 1024 * 1024
    """Most bytes of all streams under way that are kept for their turns. A stream for which there is no more room, or
    that has more than 64 MiB, goes on; its turn holds the request, usage and times (`too_large`)."""

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        names = {upstream.name for upstream in self.upstreams} & {engine.name for engine in self.engines}
        if names:
            raise ValueError(f"{', '.join(sorted(names))}: an engine and an upstream have the same name")
        return self

    @property
    def subject_key(self) -> bytes:
        """Key of the hash of a trajectory's subject: of a secret that all gateways share, if they have one."""
        secret = self.user_key or self.shared.service_key
        return hashlib.sha256(b"ratchet subjects\0" + secret.get_secret_value().encode()).digest() if secret else b""

    @property
    def engines(self) -> Sequence[EngineSettings]:
        """The engines that serve policies."""
        engine = EngineSettings(
            name=self.shared.engine_kind,
            kind=self.shared.engine_kind,
            urls=replica_urls(self.engine_url),
            roles=(ANY_ROLE,),
            api_key=self.engine_api_key,
            logprobs_mode=self.engine_logprobs_mode,
            price=self.engine_price,
        )
        return self.shared.engines or (engine,)

    @property
    def prices(self) -> Prices:
        """All prices that are set."""
        upstreams = {
            upstream.name: {model: _price(set_) for model, set_ in upstream.prices.items()}
            for upstream in self.upstreams
        }
        return Prices(
            {engine.name: _price(engine.price) if engine.price else None for engine in self.engines}, upstreams
        )

    @property
    def logprob_modes(self) -> Mapping[str, str]:
        """By engine, which distribution it logs, where its answers do not name one."""
        return {engine.name: MODES[engine.logprobs_mode] for engine in self.engines if engine.logprobs_mode is not None}

    @property
    def limits(self) -> Mapping[str, str]:
        """By upstream, the member of a chat that bounds an answer: all servers but OpenAI's own know the older one."""
        hosts = {upstream.name: urlsplit(upstream.base_url).hostname or "" for upstream in self.upstreams}
        return {name: "max_tokens" for name, host in hosts.items() if not f".{host}".endswith(_NEWER_LIMIT)}


def verify(settings: Settings, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` where the environment lacks the key of a server: known before a start."""
    for server in (*settings.engines, *settings.upstreams):
        server.key(environment)


def _price(settings: PriceSettings) -> Price:
    return Price(settings.prompt, settings.completion, settings.cached_prompt)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What no installation has had to change, each with its reason; tests choose other values.

    Times in seconds, memory in bytes.
    """

    engine_connect_timeout_s: float = 2.0
    """For one connection: a refused or timed-out one is tried three times, while the agent waits."""
    engine_idle_s: float = 120.0
    """Longest silence within a stream, neither an event nor a comment: engines write comments every few seconds."""
    keep_alive_s: float = 5.0
    """A stream begins after this long at the latest, and gets a comment as often: proxies cut silent ones off after 30
    s or more. An error before that has a status of its own."""
    header_s: float = 10.0
    """For a client to send its request's headers: a slow line takes one second."""
    body_s: float = 60.0
    """For a client to send its request's body: 32 MiB at half a megabyte a second."""
    bodies_bytes: int = 512 * MIB
    """Of all open requests; beyond it requests get 503. Sixteen bodies of the largest size."""
    conversation_bytes: int = 256 * MIB
    """Of all recorders, for trajectories between their calls: 1,000 with eight calls of 8,000 tokens (32 KB) each. The
    next call of one that was forgotten records its whole prompt."""
    arms_bytes: int = 64 * MIB
    """For the arms of 64,000 trajectories between their calls."""
    identity_bytes: int = 64 * MIB
    """For what calls without a name are recognised by: 90,000 answers, those of other gateways included."""
    conversation_rest_s: float = 3600.0
    """How long a conversation may rest and be recognised by what was said in it: equal ones come again after longer."""
    lease_s: float = LEASE_S
    """A canary weight lapses after so long without an observed renewal."""
    queue_limit: int = 20_000
    """Turns in memory on their way to the broker: some seconds of the fastest traffic; the spool takes more."""
    spool_bytes: int = 512 * MIB
    """On disk for turns while the broker is away: half of the room that a start asks for."""
    close_s: float = 3.0
    """How long a stop waits for the broker to take what is queued; the rest is in the spool."""
