"""Every service's settings in one table, and what is wrong with them: checked together, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.service.setting_names import (
    PREFIX,
    Setting,
    named_in,
    nearest,
    settings_in,
    unknown,
    variables_in,
    without_kubernetes,
)
from ratchet.core.service.settings import EnvironmentSettings, SharedSettings, checked, from_file, left_open, table_of
from ratchet.core.service.settings_file import SettingsFile, without_passwords
from ratchet.local.local_stack.catalog import ALL_SERVICES, ServiceSpec, default_ports
from ratchet.local.local_stack.settings import ports_of_options

STACK = "stack"
"""The file's table for `ratchet up` itself."""
CLIENT = "client"
"""Runs in agents' processes, and reads no settings file."""
FURTHER = {CLIENT: "ratchet.client.settings", "vllm_plugin": "ratchet.extras.vllm_plugin.settings"}
"""What has settings and is no service of the local stack."""


@dataclass(frozen=True, slots=True)
class StackTable:
    """What the table `[stack]` says, in the place of the options of `ratchet up`."""

    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    free_ports: bool = False
    only: tuple[str, ...] = ()
    mlflow: Path | None = None
    upstream: str = ""
    workflows: bool = False
    analyst: bool = False
    gateways: int = 1


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as a service gets it."""

    setting: Setting
    value: Any  # of any type: each setting has its own
    origin: str | None
    """The variable, the place in the file, or `ratchet up`; None: the default."""


def kinds() -> dict[str, type[EnvironmentSettings]]:
    """The class of settings of each service, in starting order, and of what is none."""
    return {name: kind_of(name) for name in _modules()}


def kind_of(name: str) -> type[EnvironmentSettings]:
    """The class of settings of one of them."""
    imported: Any = import_module(_modules()[name])
    return getattr(imported, "Settings", None) or imported.ClientSettings


def _modules() -> dict[str, str]:
    return {spec.name: f"{spec.module}.settings" for spec in ALL_SERVICES if not spec.like} | FURTHER


def tables() -> dict[str, str]:
    """The tables that a file may have, each by its name, and that of a service by its short name too."""
    shorts = {spec.short: spec.name for spec in ALL_SERVICES if not spec.like}
    return {**shorts, **{name: name for name in kinds() if name != CLIENT}, STACK: STACK}


def faults_of(
    file: SettingsFile, environment: Mapping[str, str], added: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """A sentence for each thing that is wrong with the settings of the services, each once.

    `added`: by service, the variables that the stack gives it beside the environment.
    """
    yield from file.strangers(tables(), SharedSettings)
    try:
        stack_table(file)
    except ConfigError as error:
        yield str(error)
    environment = without_kubernetes(environment)
    by_fault: dict[str, list[str]] = {}
    every = kinds()
    for name in added:
        try:
            wrong, settings = checked(every[name], file, {**environment, **added[name]})
        except ConfigError as error:
            wrong, settings = [str(error)], None
        if settings is not None:
            wrong += _refusals(settings, {**environment, **added[name]}) if not wrong else ()
        for fault in wrong:
            by_fault.setdefault(fault, []).append(name)
    strange = unread(file, environment, added).values()
    yield from (fault for fault in strange if "did you mean" in fault and fault not in by_fault)
    for fault, names in by_fault.items():
        yield f"{names[0]}: {fault}" if len(names) == 1 else fault


def warnings_of(file: SettingsFile, environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence on the variables that begin like ours and resemble none: they may be those of a plug-in."""
    strange = unread(file, environment, {})
    if names := [name for name, fault in strange.items() if "did you mean" not in fault]:
        yield f"no setting is called {', '.join(names)}: right for variables of your own, such as those of a plug-in"


def unread(
    file: SettingsFile, environment: Mapping[str, str], added: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """By name, a sentence for each variable that begins like ours, and that no program of ours reads.

    The settings of all services may name variables, also of those that do not start.
    """
    environment = without_kubernetes(environment)
    every = kinds()
    named: list[str] = []
    for name, kind in every.items():
        with suppress(ConfigError):  # a fault of that service, if it starts
            of_it = SettingsFile() if name == CLIENT else file
            settings = checked(kind, of_it, {**environment, **added.get(name, {})})[1]
            named += () if settings is None else named_in(settings)
    known = variables_in((*every.values(), SharedSettings))
    ours = sorted(name for name in environment if name.upper().startswith(PREFIX))
    return {name: fault for name in ours for fault in unknown([name], known, named)}


def _refusals(settings: EnvironmentSettings, environment: Mapping[str, str]) -> Iterator[str]:
    """What a service would refuse at its start, though each value fits (its module has a `verify` that knows), and what
    it would only wait for (`lacks`)."""
    module = import_module(type(settings).__module__)
    verify, lacks = getattr(module, "verify", None), getattr(module, "lacks", None)
    if lacks is not None:
        yield from lacks(settings)
    if verify is not None:
        try:
            verify(settings, environment)
        except ConfigError as error:
            yield str(error)


def stack_table(file: SettingsFile) -> StackTable:
    """The table `[stack]`, with the ports that the tables of services name. Raises `ConfigError`."""
    given = dict(file.table(STACK))
    known = [member.name for member in fields(StackTable)]
    if strange := next((name for name in given if name not in known), None):
        raise ConfigError(f"there is no setting {STACK}.{strange} in {file.path}{nearest(strange, known)}")
    if isinstance(ports := given.get("ports"), dict):
        given["ports"] = ports_of_options([f"{name}={port}" for name, port in cast("dict[str, Any]", ports).items()])
    try:
        table = msgspec.convert(given, StackTable, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise ConfigError(f"[{STACK}] in {file.path}: {error}") from error
    if without_passwords(table.upstream, "upstream") != table.upstream:
        raise ConfigError(
            f"[{STACK}] in {file.path}: the password in upstream is a secret, and none belongs in a file: "
            "set RATCHET_UPSTREAM_KEY to the key of that server"
        )
    return replace(table, ports={**dict(_ports_of_services(file)), **table.ports})


def variables_of(spec: ServiceSpec, file: SettingsFile, environment: Mapping[str, str]) -> dict[str, str]:
    """What the file adds to the environment of a service."""
    kind = kind_of(spec.configured_as)
    return left_open(kind, from_file(kind, file), environment)


def effective(
    kind: type[EnvironmentSettings], file: SettingsFile, environment: Mapping[str, str], stack: Mapping[str, str]
) -> list[Effective]:
    """The settings of a service, its own ones first. `stack`: the variables that the running stack gives it.

    Raises `ConfigError` where they cannot be made.
    """
    file = file if table_of(kind) != CLIENT else SettingsFile()
    given = from_file(kind, file)
    variables = {**environment, **stack}
    faults, settings = checked(kind, file, variables)
    if settings is None:
        raise ConfigError("; ".join(faults))
    filed = left_open(kind, given, variables)
    shared: Any = getattr(settings, "shared", None)
    values: Any = settings.model_dump(mode="json")
    made = [(setting, values[name]) for name, setting in settings_in(kind).items()]
    if shared is not None:
        made += [(setting, values["shared"][name]) for name, setting in settings_in(SharedSettings).items()]
    return [Effective(own, value, _origin(own, given.places, filed, environment, stack)) for own, value in made]


def _origin(
    setting: Setting,
    places: Mapping[str, str],
    filed: Mapping[str, str],
    environment: Mapping[str, str],
    stack: Mapping[str, str],
) -> str | None:
    if given := _first(setting.variables, stack):
        return f"ratchet up ({given})"
    if given := _first(setting.variables, environment):
        return given
    return places[setting.variables[0]] if setting.variables[0] in filed else None


def _first(variables: Iterable[str], environment: Mapping[str, str]) -> str | None:
    there = {name.upper() for name in without_kubernetes(environment)}
    return next((variable for variable in variables if variable in there), None)


def _ports_of_services(file: SettingsFile) -> Iterator[tuple[str, int]]:
    """`port` and `health_port` in the table of a service, which choose its ports in the local stack, too."""
    known = default_ports()
    for spec in ALL_SERVICES:
        table = {} if spec.like else file.table(spec.name)
        for setting, name in (("port", spec.short), ("health_port", f"{spec.short}_health")):
            port = table.get(setting)
            if name in known and isinstance(port, int) and port:
                yield name, port
