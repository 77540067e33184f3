"""Settings that all services share: addresses of broker, warehouse and object store; and how settings are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from ratchet.bus.settings import BusSettings, without_user
from ratchet.errors import BadRequest, ConfigError
from ratchet.rules.access import NAME, checked_scopes
from ratchet.service.engine_list import EngineKind, EngineSettings, checked_engines

PREFIX = "RATCHET_"
"""How the names of all our variables begin."""
_BROKER_SCHEMES = frozenset({"nats", "tls", "ws", "wss"})
LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(str.lower)]


def _from_json(value: object) -> object:
    """The value of a variable that holds JSON; a value that is no text stays as it is. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def _address(url: str) -> str:
    """The address of a broker. Raises `ValueError` for one that no client could use, without the password in it."""
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        is_address = parts.scheme in _BROKER_SCHEMES and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number, for example
        is_address = False
    if not is_address:
        raise ValueError(f"{without_user(url)!r} is no address of a broker, such as nats://127.0.0.1:4222")
    return url


def _checked(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """The scopes. Raises `ValueError`, as pydantic wants it."""
    try:
        return checked_scopes(scopes)
    except BadRequest as error:
        raise ValueError(str(error)) from error


FROM_JSON = (NoDecode, BeforeValidator(_from_json))
"""Annotates a field whose variable holds JSON, also one that does not come from this process's environment."""


class EnvironmentSettings(Protocol):
    """Settings that `read` makes: a class of pydantic-settings."""

    model_config: SettingsConfigDict


S = TypeVar("S", bound=EnvironmentSettings)


class KeySettings(BaseModel):
    """An API key that a service knows from its settings: the first one of an administrator, or one of agents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME.pattern}$")
    """What logs and audit logs call it."""
    key: SecretStr = Field(min_length=1)
    scopes: Annotated[tuple[str, ...], AfterValidator(_checked)]
    """Such as `admin`, or `infer:*` and `feedback:*`."""


class SharedSettings(BaseSettings):
    """Read from `RATCHET_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    nats_url: Annotated[str, AfterValidator(_address)] = "nats://127.0.0.1:4222"
    """Broker; `tls://` insists on TLS."""
    nats_seed_file: Path | None = None
    """File with this service's NKEY seed; unset for a broker that asks for no credentials."""
    replicas: int = 1
    """Copies of every stream and bucket: 1 on one machine, 3 in a cluster."""
    stream_max_bytes: Annotated[dict[str, int], *FROM_JSON] = Field(default_factory=dict)
    """JSON: stream -> bytes that it may hold; a stream that is not named has the bound of `contracts/topics.json`."""
    clickhouse_url: str = "http://127.0.0.1:8123"
    """ClickHouse's HTTP interface, or HTTPS; user and password may stand in the url."""
    clickhouse_database: str = "ratchet"
    """Database that holds our tables."""
    clickhouse_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for the next part of an answer of ClickHouse; commands wait 10 s."""
    s3_endpoint: str = "http://127.0.0.1:8333"
    """Any S3 endpoint."""
    s3_access_key: str = "ratchet"
    """Access key."""
    s3_secret_key: str = ""
    """Secret key; the local stack makes one of its own."""
    s3_bucket: str = "ratchet"
    """Bucket for snapshots, adapters and checkpoints."""
    engines: Annotated[tuple[EngineSettings, ...], *FROM_JSON, AfterValidator(checked_engines)] = ()
    """The engines that serve policies, in the place of the one at `RATCHET_ENGINE_URL`. JSON: `[{"name": "small",
    "kind": "vllm", "urls": ["http://a:8000", "http://b:8000"], "roles": ["support"], "api_key_env": "SMALL_KEY"}]`; the
    roles `["*"]` stand for all that no engine names."""
    engine_kind: EngineKind = "engine_local"
    """What runs at `RATCHET_ENGINE_URL`."""
    data_dir: Path = Path(".ratchet/data")
    """Local files of this process: caches and spools, nothing that cannot be rebuilt."""
    http_host: str = "127.0.0.1"
    """Address that HTTP servers listen on."""
    allowed_hosts: Annotated[list[str], *FROM_JSON] = Field(default_factory=list[str])
    """Names, with a dot, under which agents and pages know our HTTP servers. A JSON list. Any IP address and any name
    without a dot is accepted anyway: no other site can have it."""
    keys: Annotated[list[KeySettings], *FROM_JSON] = Field(default_factory=list[KeySettings])
    """API keys that gateway, coordinator, deployer and console know besides those of `ratchet keys`, such as the first
    one of an administrator. JSON: `[{"name": "operators", "key": "...", "scopes": ["admin"]}]`."""
    service_key: SecretStr | None = None
    """The key with which our services call one another, the same in all of them; needed once there are other keys."""
    health_port: int = 0
    """Port of /healthz, /readyz and /metrics; 0 picks a free one."""
    log_level: LogLevel = "info"
    """Lowest level that is logged."""
    shutdown_s: float = 10.0
    """One deadline for the whole ordered shutdown."""

    @property
    def bus(self) -> BusSettings:
        """The settings of the bus."""
        return BusSettings(self.nats_url, self.nats_seed_file, self.replicas, self.stream_max_bytes)


def read(kind: type[S]) -> S:
    """Settings from the environment. Raises `ConfigError`, which names the variables that are wrong."""
    prefix = kind.model_config.get("env_prefix", "")
    try:
        return kind()
    except SettingsError as error:
        unread = re.search(r'field "(\w+)"', str(error))
        variable = prefix + (unread[1].upper() if unread else "*")
        raise ConfigError(f"wrong setting {variable}: it is not JSON: {error.__cause__}") from error
    except ValidationError as error:
        shared = error.title == SharedSettings.__name__
        wrong = faults(error, PREFIX if shared else prefix)
        raise ConfigError(f"wrong setting {wrong}") from error


def faults(error: ValidationError, prefix: str) -> str:
    """Each fault with its variable and its place in the value; a fault across several fields names them itself."""
    faults: list[str] = []
    for one in error.errors(include_url=False):
        field = str(one["loc"][0]).upper() if one["loc"] else "*"
        variable = field if field.startswith(PREFIX) else prefix + field
        place = "".join(f"[{step}]" for step in one["loc"][1:])
        faults.append(f"{variable}{place}: {one['msg'].removeprefix('Value error, ')}")
    return "; ".join(faults)
