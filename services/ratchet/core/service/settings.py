"""Settings that all services share: addresses of broker, warehouse and object store; and how settings are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError

from ratchet.bus.settings import BusSettings, without_user
from ratchet.core.errors import BadRequest, ConfigError
from ratchet.core.rules.access import EVERY_ROLE, NAME, KeyScope, checked_scopes
from ratchet.core.service.engine_list import EngineKind, EngineSettings, checked_engines
from ratchet.core.service.setting_names import PREFIX, named_in, settings_in, unknown, variables_in, without_kubernetes
from ratchet.core.service.settings_file import FromFile, SettingsFile, find_file


def _usable(url: str, schemes: Collection[str], example: str) -> str:
    """Raises `ValueError` for an address that no client could use, without the password in it."""
    try:
        parts = urlsplit(url)
        is_plain = url.isprintable() and " " not in url
        is_usable = is_plain and parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number, for example
        is_usable = False
    if not is_usable:
        raise ValueError(f"{without_user(url)!r} is no address of a {example}")
    return url


def http_address(url: str) -> str:
    """The URL of a server of HTTP. Raises `ValueError` for one that no client could use."""
    _usable(url.strip(), ("http", "https"), "server, such as http://127.0.0.1:8080")
    return url


Port = Annotated[int, Field(ge=0, le=65535)]
"""A port that a server listens on; 0 picks a free one."""
HttpAddress = Annotated[str, AfterValidator(http_address)]
"""The URL of a server of HTTP."""
OptionalHttpAddress = Annotated[
    str | None, AfterValidator(lambda url: http_address(url) if url and url != "none" else None)
]
"""The same; absent, empty or `none` where there is no such server."""


LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(str.lower)]


def _from_json(value: object) -> object:
    """The value of a variable that holds JSON; a value that is no text stays as it is. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _broker_address(url: str) -> str:
    schemes = ("nats", "tls", "ws", "wss")
    _usable(url if "//" in url else f"nats://{url}", schemes, "broker, such as nats://127.0.0.1:4222")
    return url


def _checked(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """The scopes. Raises `ValueError`, as pydantic wants it."""
    try:
        return checked_scopes(scopes)
    except BadRequest as error:
        raise ValueError(str(error)) from error


FROM_JSON = (NoDecode, BeforeValidator(_from_json))
"""Annotates a field whose variable holds JSON, also one that does not come from this process's environment."""


_variables: ContextVar[Mapping[str, str] | None] = ContextVar("variables", default=None)
"""The variables that settings are read from; None: those of this process."""


class _OurVariables(EnvSettingsSource):
    """The variables that begin with `RATCHET_`: an alias of a field, such as `port`, is no variable."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = _variables.get()
        every = without_kubernetes(os.environ if given is None else given)
        return {name.lower(): value for name, value in every.items() if name.upper().startswith(PREFIX)}


class EnvironmentSettings(BaseSettings):
    """Settings that `read` makes, from the variables of this process or others, and from nowhere else."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the caller gives, then our variables."""
        return init_settings, _OurVariables(settings_cls)


S = TypeVar("S", bound=EnvironmentSettings)


KEY_CHARACTERS = 16
"""Least length of a key: a random one of so many cannot be guessed, however often someone tries."""


def _long_enough(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < KEY_CHARACTERS:
        raise ValueError(f"a key has at least {KEY_CHARACTERS} characters: take random ones (`openssl rand -hex 16`)")
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_long_enough)]
"""A key that callers send."""


class KeySettings(BaseModel):
    """An API key that a service knows from its settings: the first one of an administrator, or one of agents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME.pattern}$")
    """What logs and audit logs call it."""
    key: ApiKey
    scopes: Annotated[tuple[str, ...], AfterValidator(_checked)]
    """Such as `admin`, or `infer:*` and `feedback:*`."""


_RIGHTS: Mapping[str, Sequence[KeyScope]] = {
    "viewer": (KeyScope.VIEW,),
    "operator": (KeyScope.OPERATE, KeyScope.TRAIN, KeyScope.ANNOTATE),
    "owner": (KeyScope.OPERATE, KeyScope.TRAIN, KeyScope.ANNOTATE, KeyScope.INFER, KeyScope.FEEDBACK),
}


def _scopes_of(right: str) -> tuple[str, ...]:
    """The scopes of `viewer`, `operator` or `owner`, of a role (`owner:support`). Raises `ValueError`."""
    kind, _, role = right.partition(":")
    if kind not in _RIGHTS:
        raise ValueError(f"{right[:80]!r}: a right is viewer, operator or owner, of a role with `:<role>`")
    if right == "owner":
        return (str(KeyScope.ADMIN),)
    return _checked(tuple(f"{scope}:{role or EVERY_ROLE}" for scope in _RIGHTS[kind]))


def _rights(rights: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    for right in {right for held in rights.values() for right in held}:
        _scopes_of(right)
    return rights


def _issuer(url: str) -> str:
    parts = urlsplit(http_address(url))
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("an issuer has an https address: a program between could sign in as anyone")
    return url


class OidcSettings(BaseModel):
    """The issuer at which people sign in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[str, AfterValidator(_issuer)]
    """As its tokens name it."""
    client_id: str = Field(min_length=1)
    """Ours there: tokens for others are refused."""
    claim: str = "groups"
    """The claim with a person's groups; `a.b` is `b` in `a`."""
    rights: Annotated[Mapping[str, tuple[str, ...]], AfterValidator(_rights)]
    """By group: `viewer`, `operator`, `owner`, of a role (`operator:support`) or, without one, of all."""

    def scopes_of(self, group: str) -> list[str]:
        """What the members of a group may do."""
        return [scope for right in self.rights.get(group, ()) for scope in _scopes_of(right)]


class SharedSettings(EnvironmentSettings):
    """Read from `RATCHET_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    nats_url: Annotated[str, AfterValidator(_broker_address)] = "nats://127.0.0.1:4222"
    """Broker; `tls://` insists on TLS."""
    nats_seed_file: Path | None = None
    """File with this service's NKEY seed; unset for a broker that asks for no credentials."""
    replicas: int = 1
    """Copies of every stream and bucket: 1 on one machine, 3 in a cluster."""
    stream_max_bytes: Annotated[dict[str, int], *FROM_JSON] = Field(default_factory=dict)
    """JSON: stream -> bytes that it may hold; a stream that is not named has the bound of `contracts/topics.json`."""
    clickhouse_url: HttpAddress = "http://127.0.0.1:8123"
    """ClickHouse's HTTP interface, or HTTPS; user and password may stand in the url."""
    clickhouse_database: str = "ratchet"
    """Database that holds our tables."""
    clickhouse_cluster: str | None = Field(default=None, pattern=r"^\w+$")
    """ClickHouse's cluster on whose replicas the tables are; unset: they are on one server."""
    clickhouse_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for the next part of an answer of ClickHouse; commands wait 10 s."""
    s3_endpoint: HttpAddress = "http://127.0.0.1:8333"
    """Any S3 endpoint."""
    s3_access_key: str = "ratchet"
    """Access key."""
    s3_secret_key: str = Field(default="", repr=False)
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
    tls_file: Path | None = None
    """PEM file with a key and its certificate: gateway, coordinator, deployer, console and engine end TLS with it, and
    read it again once it is renewed. Readiness and metrics stay plain."""
    allowed_hosts: Annotated[list[str], *FROM_JSON] = Field(default_factory=list[str])
    """Names, with a dot, under which agents, pages and Prometheus know our HTTP servers. A JSON list. Any IP address
    and any name without a dot is accepted anyway: no other site can have it."""
    keys: Annotated[list[KeySettings], *FROM_JSON] = Field(default_factory=list[KeySettings])
    """API keys that gateway, coordinator, deployer and console know besides those of `ratchet keys`, such as the first
    one of an administrator. JSON: `[{"name": "operators", "key": "...", "scopes": ["admin"]}]`."""
    service_key: ApiKey | None = None
    """The key with which our services call one another, the same in all of them; needed once there are other keys."""
    oidc: Annotated[OidcSettings | None, *FROM_JSON] = None
    """The issuer at which people sign in, beside the keys of programs. JSON: `{"issuer": "https://id.example.com",
    "client_id": "ratchet", "claim": "groups", "rights": {"ml": ["owner"], "help": ["operator:support"]}}`."""
    four_eyes: bool = False
    """Whether promotions, overrides and erasures take two people: the second one gives the same order."""
    health_port: Port = 0
    """Port of /healthz, /readyz and /metrics; 0 picks a free one."""
    log_level: LogLevel = "info"
    """Lowest level that is logged."""

    @property
    def bus(self) -> BusSettings:
        """The settings of the bus."""
        return BusSettings(self.nats_url, self.nats_seed_file, self.replicas, self.stream_max_bytes)


class ServiceSettings(EnvironmentSettings):
    """Settings of one service."""

    shared: SharedSettings = Field(default_factory=SharedSettings)
    """What all services share."""


def read(kind: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Settings from the environment, and from the settings file for what the environment leaves open.

    Raises `ConfigError`, which names all that is wrong.
    """
    variables = os.environ if environment is None else environment
    faults, settings = checked(kind, find_file(variables), variables)
    if settings is None or faults:
        raise ConfigError("; ".join(faults))
    return settings


def checked(kind: type[S], file: SettingsFile, environment: Mapping[str, str]) -> tuple[list[str], S | None]:
    """A sentence for each thing that is wrong with the settings of a service, and the settings; None where they cannot
    be made.
    """
    given, environment = from_file(kind, file), without_kubernetes(environment)
    filed = left_open(kind, given, environment)
    places = {variable: given.places[variable] for variable in filed}
    token = _variables.set({**environment, **filed})
    try:
        faults, settings = _made(kind, places)
    finally:
        _variables.reset(token)
    return [*given.faults, *faults, *_unknown(kind, settings, environment)], settings


def _made(kind: type[S], places: Mapping[str, str], **fixed: object) -> tuple[list[str], S | None]:
    """What is wrong with the values of a class of settings, and the settings. `places`: of those from a file."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    try:
        return [], kind(**fixed)
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        variable = prefix + (field[1].upper() if field else "*")
        return [f"wrong setting {places.get(variable, variable)}: it is not JSON: {error.__cause__}"], None
    except ValidationError as error:
        if error.title != SharedSettings.__name__ or kind is SharedSettings:
            return [f"wrong setting {fault}" for fault in _faults(error, prefix, places)], None
        own, _ = _made(kind, places, shared=SharedSettings.model_construct())  # faults of both, at once
        return [*(f"wrong setting {fault}" for fault in _faults(error, PREFIX, places)), *own], None


def from_file(kind: type[BaseSettings], file: SettingsFile) -> FromFile:
    """What a file says about the service of a class of settings."""
    if file.path is None:
        return FromFile()
    return file.of(table_of(kind), kind, SharedSettings)


def left_open(kind: type[BaseSettings], given: FromFile, environment: Mapping[str, str]) -> dict[str, str]:
    """The values of a file that no variable of the environment replaces."""
    there = {name.upper() for name in without_kubernetes(environment)}
    every = (*settings_in(kind).values(), *settings_in(SharedSettings).values())
    replaced = {setting.variables[0] for setting in every if there.intersection(setting.variables)}
    return {variable: text for variable, text in given.variables.items() if variable not in replaced}


def table_of(kind: type[BaseSettings]) -> str:
    """The table of a service in the settings file: its package."""
    return ("", *kind.__module__.split("."))[-2]


def _unknown(kind: type[BaseSettings], settings: BaseSettings | None, environment: Mapping[str, str]) -> list[str]:
    """Variables that are written like a setting of this service, are none and resemble one."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    if prefix == PREFIX or not prefix.startswith(PREFIX):  # other services' variables begin so too, and others'
        return []
    known = variables_in((kind, SharedSettings))
    alike = [name for name in environment if name.upper().startswith(prefix)]
    if settings is not None:
        known.update(named_in(settings))
    # A name that is like none of ours may be a plug-in's, or one that values name which cannot be read.
    return [fault for fault in unknown(alike, known) if "did you mean" in fault]


def faults(error: ValidationError, prefix: str) -> str:
    """Each fault with its variable and its place in the value; a fault across several fields names them itself."""
    return "; ".join(_faults(error, prefix, {}))


def _faults(error: ValidationError, prefix: str, places: Mapping[str, str]) -> list[str]:
    faults: list[str] = []
    for fault in error.errors(include_url=False):
        field = str(fault["loc"][0]).upper() if fault["loc"] else "*"
        variable = field if field.startswith(PREFIX) else prefix + field
        place = "".join(f"[{step}]" for step in fault["loc"][1:])
        faults.append(f"{places.get(variable, variable)}{place}: {fault['msg'].removeprefix('Value error, ')}")
    return faults
