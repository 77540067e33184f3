"""From settings to programs: which members, on which ports, with which environment."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from ratchet.core.errors import ConfigError, MissingExtra
from ratchet.core.rules.model_hub import PASSIVE
from ratchet.core.service.discovery import DIRECTORY_VARIABLE
from ratchet.core.service.settings import PREFIX, SharedSettings, faults, from_file, left_open
from ratchet.core.service.settings_file import FILE_VARIABLE
from ratchet.local.local_stack.broker_users import ADMIN, AGENT_PROGRAM, CONFIG_FILE, OPERATOR, broker_users
from ratchet.local.local_stack.catalog import (
    ANALYST,
    CONSOLE,
    ENGINE,
    GATEWAY,
    MLFLOW,
    NOTIFIER,
    SERVERS,
    SERVICES,
    SPAN_EXPORTER,
    TRACKER,
    VLLM,
    WORKFLOWS,
    ServiceSpec,
    default_ports,
    gateway_names,
    health_port_name,
    owner_of,
)
from ratchet.local.local_stack.certificates import AUTHORITIES, Certificates, certificates_of
from ratchet.local.local_stack.configuration import variables_of
from ratchet.local.local_stack.ports import LOOPBACK, free_ports, is_taken
from ratchet.local.local_stack.program import STOP_S, Program
from ratchet.local.local_stack.providers import require_one_source, upstream_environment
from ratchet.local.local_stack.servers import clickhouse_server, clickhouse_url, mlflow_server, nats_server, seaweed_s3
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import StackSecrets, read_ports
from ratchet.local.local_stack.storage_keys import MARK_FILE, StorageKeys
from ratchet.local.local_stack.vllm import LOGPROBS_MODE, vllm_engine

HEALTH_URLS = {CONSOLE: "RATCHET_CONSOLE_HEALTH_URLS", NOTIFIER.name: "RATCHET_NOTIFIER_HEALTH_URLS"}
"""By service, the variable that has the other services' health ports."""
RECEIVERS = "RATCHET_NOTIFIER_RECEIVERS"
"""They hold secrets, so no file has them."""
USER_KEY = "RATCHET_GATEWAY_USER_KEY"
SPANS = "RATCHET_SPAN_EXPORTER_ENDPOINT"
"""Of the exporter, and of gateways, which continue traces from their own spans then."""
REWARD_MODELS = "RATCHET_REWARD_MODELS"
"""The engine holds them, whatever jobs and policies need."""
GATEWAY_SILENT_S = 10.0
"""With its looks a gateway that hangs is ended within 15 s: agents on its connections wait until then."""
SHOWN_PORTS = 3
"""Of those that a start cannot have: next to a stack that runs already it has none."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Everything that is decided before the first process starts."""

    programs: tuple[Program, ...]
    """In starting order."""
    needs: Mapping[str, tuple[str, ...]]
    """For each member, the members that are ready before it starts."""
    env: Mapping[str, str]
    """Where everything is, for services, agents and commands."""
    ports: Mapping[str, int]
    """By name."""
    admin_seed: Path
    """Of the broker's user that makes streams and buckets."""
    when_needed: Set[str] = frozenset()
    """Members that start when a job or a policy needs them."""

    @property
    def shared(self) -> SharedSettings:
        """The same as settings, for the supervisor, which may do everything."""
        return shared_of({**self.env, SEED_VARIABLE: str(self.admin_seed)})


SEED_VARIABLE, CLIENT_SEED_VARIABLE = "RATCHET_NATS_SEED_FILE", "RATCHET_CLIENT_NATS_SEED_FILE"
"""Whose key a program of ours, and the client in an agent, shows the broker."""
ENGINE_KEY_VARIABLE = "RATCHET_ENGINE_API_KEY"
"""What `engine_local` asks for, and what gateway and deployer send to their engine."""


def make_plan(settings: StackSettings, secrets: StackSecrets) -> StackPlan:
    """Decide, and touch nothing.

    Raises `ConfigError` for a taken port or an MLflow that is not there, `MissingExtra` for what is not installed.
    """
    servers, services = chosen(settings.only)
    services = [*services, *further(settings)]
    owners = {*servers, *(spec.name for spec in services), *(() if settings.mlflow is None else (MLFLOW,))}
    names = [name for name in default_ports(settings.gateways) if owner_of(name) in owners]
    ports = choose_ports(settings, names, is_taken)
    filed = left_open(SharedSettings, from_file(SharedSettings, settings.file), os.environ)
    users = broker_users(settings.directory)
    tls = certificates_of(settings.directory)
    addresses = stack_environment(
        ports,
        shared_of(filed),
        secrets,
        tls,
        has_own_engine=settings.vllm is None,
        further=[spec for spec, asked in _asked_for(settings) if asked],
    )
    env = _environment(settings, addresses, secrets.engine_key)
    env |= {SEED_VARIABLE: str(users.seed_file(OPERATOR)), CLIENT_SEED_VARIABLE: str(users.seed_file(AGENT_PROGRAM))}
    programs = [*_servers(settings.directory, secrets, servers, ports, shared_of({**filed, **env}))]
    if settings.mlflow is not None:
        mlflow = mlflow_server(settings.mlflow, settings.directory.resolve() / "data" / MLFLOW, ports[MLFLOW])
        programs.append(mlflow)
        env["RATCHET_TRACKER_MLFLOW_URL"] = mlflow.url
    programs += _services(settings, services, ports, env)
    started = {program.name for program in programs}
    named = {*settings.only, *([ENGINE] if _names_reward_models(settings) else [])}
    when_needed = {spec.name for spec in services if spec.starts_when_needed and spec.name not in named}
    used = {name: ports[name] for name in names}
    needs, later = _needs(settings, services, started), frozenset(when_needed & started)
    return StackPlan(tuple(programs), needs, env, used, users.seed_file(ADMIN), later)


def _environment(settings: StackSettings, env: Mapping[str, str], engine_key: str) -> dict[str, str]:
    """What the stack's own environment leaves open; what the settings say counts most."""
    env = dict(env)
    if settings.vllm is None and ENGINE_KEY_VARIABLE not in os.environ:
        env[ENGINE_KEY_VARIABLE] = engine_key
    if settings.vllm is not None:  # what the services have to know of an engine that is not ours
        env |= {"RATCHET_ENGINE_KIND": VLLM, "RATCHET_ENGINE_LOGPROBS_MODE": LOGPROBS_MODE}
    if SPANS not in os.environ and (endpoint := _endpoint(settings)):
        env[SPANS] = endpoint
    require_one_source(settings, os.environ)
    env |= upstream_environment(settings.upstream, os.environ) if settings.upstream else {}
    return env | dict(settings.env)


def _servers(
    directory: Path, secrets: StackSecrets, names: Sequence[str], ports: Mapping[str, int], shared: SharedSettings
) -> Iterator[Program]:
    tls = certificates_of(directory)
    data, storage = directory.resolve() / "data", StorageKeys.of_environment(os.environ)
    storage.require_fit(data)
    for name in names:
        match name:
            case "nats":
                inner = ports["nats_monitor"]
                broker = nats_server(data / name, ports[name], inner, CONFIG_FILE, storage, tls_file=tls.used(name))
                mark = {data / MARK_FILE: storage.mark()} if storage else {}
                yield replace(broker, files={**broker.files, **mark})
            case "s3":
                keys = shared.s3_access_key, shared.s3_secret_key
                encrypts, tls_file = bool(storage), tls.used(name)
                yield seaweed_s3(data / name, ports[name], *keys, ports.values(), encrypts=encrypts, tls_file=tls_file)
            case _:
                password = secrets.clickhouse_password
                yield clickhouse_server(data / name, ports[name], password, storage, tls_file=tls.used(name))


def _services(
    settings: StackSettings, specs: Sequence[ServiceSpec], ports: Mapping[str, int], env: Mapping[str, str]
) -> Iterator[Program]:
    data = settings.directory.resolve() / "data"
    for spec in specs:
        if spec.name == ENGINE and settings.vllm is not None:
            yield vllm_engine(settings.vllm, env, data / VLLM, ports[spec.short])
            continue
        given = env
        if spec.name in HEALTH_URLS:
            others = [other for other in specs if other is not spec]
            urls = health_urls(others, ports, settings.gateways, has_own_engine=settings.vllm is None)
            given = {**env, HEALTH_URLS[spec.name]: urls, DIRECTORY_VARIABLE: str(settings.directory.resolve())}
        if spec.name == WORKFLOWS.name and (key := _given(settings, USER_KEY, (GATEWAY, "user_key"))):
            given = {**env, USER_KEY: key}  # a user is the same one in calls and in workflows
        own = {**variables_of(spec, settings.file, {**os.environ, **given}), **given}
        own = {name: value for name, value in own.items() if name not in (SEED_VARIABLE, CLIENT_SEED_VARIABLE)}
        if spec.name != ENGINE:  # it does not talk to the broker
            own[SEED_VARIABLE] = str(broker_users(settings.directory).seed_file(spec.configured_as))
        if spec.name == GATEWAY and settings.gateways > 1:
            yield from shared_port_programs(spec, settings.gateways, ports, own, data)
        else:
            yield service_program(spec, ports, own, data)


def _needs(settings: StackSettings, specs: Sequence[ServiceSpec], started: Set[str]) -> dict[str, tuple[str, ...]]:
    """By program: those that start before it."""
    standing_in: dict[str, str] = {} if settings.vllm is None else {ENGINE: VLLM}
    needs: dict[str, tuple[str, ...]] = {} if settings.mlflow is None else {MLFLOW: ()}
    for spec in specs:
        needed = (standing_in.get(name, name) for name in (*SERVERS, *spec.needs))
        names = gateway_names(settings.gateways) if spec.name == GATEWAY else [standing_in.get(spec.name, spec.name)]
        needs |= dict.fromkeys(names, tuple(name for name in needed if name in started))
    return needs


def chosen(only: tuple[str, ...]) -> tuple[list[str], list[ServiceSpec]]:
    """Servers and services to start. A service brings all servers with it."""
    services = [spec for spec in SERVICES if not only or spec.name in only]
    servers = [name for name in SERVERS if services or name in only]
    return servers, services


def further(settings: StackSettings) -> list[ServiceSpec]:
    """The services that only some stacks have."""
    asked = [
        (TRACKER, settings.mlflow is not None),
        (NOTIFIER, _given(settings, RECEIVERS) not in ("", "[]") and not settings.only),
        (SPAN_EXPORTER, _endpoint(settings) not in ("", "none") and not settings.only),
        *_asked_for(settings),
    ]
    return [spec for spec, is_asked in asked if is_asked]


def _asked_for(settings: StackSettings) -> list[tuple[ServiceSpec, bool]]:
    return [(WORKFLOWS, settings.workflows), (ANALYST, settings.analyst)]


def _endpoint(settings: StackSettings) -> str:
    """Where spans are sent to; empty where nothing says it."""
    return _given(settings, SPANS, (SPAN_EXPORTER.name, "endpoint"))


def _names_reward_models(settings: StackSettings) -> bool:
    return _given(settings, REWARD_MODELS, ("reward_computer", "models")) not in ("", "{}")


def _given(settings: StackSettings, variable: str, filed: tuple[str, str] | None = None) -> str:
    """What a service's setting says: by its variable, else by its table and name in the settings file."""
    given = {name.upper(): value.strip() for name, value in {**os.environ, **settings.env}.items()}
    if given.get(variable) or filed is None:
        return given.get(variable, "")
    table, name = filed
    return str(settings.file.table(table).get(name) or "")


def choose_ports(settings: StackSettings, names: list[str], taken: Callable[[int], bool]) -> dict[str, int]:
    """A port for each name: one that is chosen, else the one that the stack had, else the usual one or any free one.

    Raises `ConfigError` when one is taken or given twice.
    """
    earlier = read_ports(settings.directory)
    kept = _still_free(earlier, names, settings.ports, taken if settings.free_ports else lambda _: False)
    ports = default_ports(settings.gateways) | kept | dict(settings.ports)
    if settings.free_ports:
        open_names = [name for name in names if name not in settings.ports and name not in kept]
        excluded = [*settings.ports.values(), *earlier.values()]  # also those of members that this start leaves out
        ports |= dict(zip(open_names, free_ports(len(open_names), excluded), strict=True))
    used: dict[int, str] = {}
    wrong: dict[str, str] = {}
    for name in names:
        port = ports[name]
        if port in used:
            wrong[name] = f"port {port} is given to both {used[port]} and {name}"
        elif taken(port):
            wrong[name] = f"port {port} for {owner_of(name)} is taken by another program"
        used[port] = name
    if wrong:
        faults, options = [*wrong.values()][:SHOWN_PORTS], [f"--port {name}=PORT" for name in wrong]
        if more := len(wrong) - len(faults):
            faults, options = [*faults, f"{more} other ports likewise"], ["--port NAME=PORT"]
        raise ConfigError(f"{'; '.join(faults)}; choose with {' '.join(options)} or use --free-ports")
    return ports


def _still_free(
    kept: Mapping[str, int], names: list[str], chosen: Mapping[str, int], taken: Callable[[int], bool]
) -> dict[str, int]:
    """Of the ports of earlier starts those that this one can have, each for the first name that has it."""
    free: dict[int, str] = {}
    for name in names:
        port = kept.get(name)
        if port is not None and name not in chosen and port not in chosen.values() and not taken(port):
            free.setdefault(port, name)
    return {name: port for port, name in free.items()}


def stack_environment(
    ports: Mapping[str, int],
    shared: SharedSettings,
    secrets: StackSecrets,
    tls: Certificates | None = None,
    *,
    has_own_engine: bool = True,
    further: Sequence[ServiceSpec] = (),
) -> dict[str, str]:
    """The environment variables that say where everything is, with which secrets, and whose certificates count.

    `further`: services that only some stacks have.
    """
    tls = tls if tls is not None and tls.are_there else None
    http = "http" if tls is None else "https"
    plain = () if has_own_engine else (ENGINE,)
    urls = {
        spec.url_variable: f"{'http' if spec.name in plain else http}://{LOOPBACK}:{ports[spec.short]}"
        for spec in (*SERVICES, *further)
        if spec.port is not None
    }
    return {
        **(dict.fromkeys(AUTHORITIES, str(tls.trusted)) if tls is not None else {}),
        "RATCHET_NATS_URL": f"{'nats' if tls is None else 'tls'}://{LOOPBACK}:{ports['nats']}",
        "RATCHET_CLICKHOUSE_URL": clickhouse_url(ports["clickhouse"], secrets.clickhouse_password, http),
        "RATCHET_CLICKHOUSE_DATABASE": shared.clickhouse_database,
        "RATCHET_S3_ENDPOINT": f"{http}://{LOOPBACK}:{ports['s3']}",
        "RATCHET_S3_ACCESS_KEY": shared.s3_access_key,
        "RATCHET_S3_SECRET_KEY": shared.s3_secret_key or secrets.s3_secret_key,
        "RATCHET_S3_BUCKET": shared.s3_bucket,
        "RATCHET_SERVICE_KEY": secrets.service_key,
        **urls,
    }


def health_urls(
    services: Iterable[ServiceSpec], ports: Mapping[str, int], gateways: int = 1, *, has_own_engine: bool
) -> str:
    """Where these services say whether they are ready: the value of a variable of `HEALTH_URLS`."""
    others = [spec for spec in services if has_own_engine or spec.name != ENGINE]
    names = {spec.name: f"{spec.short}_health" for spec in others}
    if GATEWAY in names:
        names |= {name: health_port_name(name) for name in gateway_names(gateways)}
    return json.dumps({name: f"http://{LOOPBACK}:{ports[port]}" for name, port in names.items()})


def shared_port_programs(
    spec: ServiceSpec, number: int, ports: Mapping[str, int], env: Mapping[str, str], data: Path
) -> list[Program]:
    """Several gateways on one port, each with a health port of its own. They share the folder: any that runs publishes
    what one that has ended has spooled."""
    shared = {**env, "RATCHET_GATEWAY_SHARES_PORT": "true"}
    health = {name: ports[health_port_name(name)] for name in gateway_names(number)}
    return [
        replace(service_program(spec, {**ports, f"{spec.short}_health": port}, shared, data), name=name)
        for name, port in health.items()
    ]


def service_program(spec: ServiceSpec, ports: Mapping[str, int], env: Mapping[str, str], data: Path) -> Program:
    """How to run one service."""
    if spec.extra is not None and find_spec("torch") is None:
        raise MissingExtra(spec.extra, spec.name)
    if find_spec(spec.module) is None:
        raise ConfigError(f"{spec.name} is not part of this installation")
    health_port, tls = ports[f"{spec.short}_health"], Certificates(data / "tls")
    own = {"RATCHET_HEALTH_PORT": str(health_port), "RATCHET_DATA_DIR": str(data / spec.name), "PYTHONUNBUFFERED": "1"}
    own[FILE_VARIABLE] = ""  # the environment has by now what the settings file says: a change waits for the next start
    if spec.port is not None:
        own[spec.port_variable] = str(ports[spec.short])
    if spec.extra is not None:
        # On few, shared cores one thread is many times faster than two that spin while they wait for each other; a
        # training job may still ask for more, which then sleep instead.
        own["OMP_NUM_THREADS"] = "1"
        own |= PASSIVE
    drain_s = _drain_s(spec, env)
    if spec.drain_s is not None:
        own[spec.drain_variable] = f"{drain_s:g}"
    own |= spec.env
    if spec.port is not None and (tls_file := tls.used(spec.name)) is not None:
        own["RATCHET_TLS_FILE"] = str(tls_file)
    port = health_port if spec.port is None else ports[spec.short]
    return Program(
        name=spec.name,
        command=(sys.executable, "-m", spec.module),
        ready_url=f"http://{LOOPBACK}:{health_port}/readyz",
        alive_url=f"http://{LOOPBACK}:{health_port}/healthz",
        url=f"{'https' if 'RATCHET_TLS_FILE' in own else 'http'}://{LOOPBACK}:{port}",
        port=port,
        health_port=health_port,
        env={**env, **own},
        directories=(data / spec.name,),
        silent_s=GATEWAY_SILENT_S if spec.name == GATEWAY else None,
        stop_s=STOP_S + drain_s,
    )


def _drain_s(spec: ServiceSpec, env: Mapping[str, str]) -> float:
    """How long a service drains: as the stack's environment says, else this process's own, else the catalog.

    Raises `ConfigError` for anything but a time: a stop waits for so long.
    """
    text = env.get(spec.drain_variable, os.environ.get(spec.drain_variable))
    if text is None:
        return spec.drain_s or 0.0
    try:
        drain_s = float(text)
    except ValueError as error:
        raise ConfigError(f"wrong setting {spec.drain_variable}: {text!r} is not a number") from error
    if not 0 <= drain_s < math.inf:
        raise ConfigError(f"wrong setting {spec.drain_variable}: {text!r} is not a number of seconds, 0 or more")
    return drain_s


def shared_of(env: Mapping[str, str]) -> SharedSettings:
    """Shared settings from a stack's environment, and from this process's own where the stack's has no value.

    Raises `ConfigError` for a value of the wrong type.
    """
    variables = {name: PREFIX + name.upper() for name in SharedSettings.model_fields}
    given = {name: env[variable] for name, variable in variables.items() if variable in env}
    try:
        return SharedSettings.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"wrong setting {faults(error, PREFIX)}") from error
