"""The names of settings: which variables set a field, which hold secrets, and which names mean nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

PREFIX = "RATCHET_"
"""How the names of all our variables begin."""

SHARED = "shared"
"""The field of a service's settings that holds those which all services have."""

OTHERS: Mapping[str, str] = {
    "RATCHET_DIR": "State directory of the local stack; `.ratchet` when unset.",
    "RATCHET_CONFIG": "The settings file; `ratchet.toml` in the working directory when unset, none when empty.",
    "RATCHET_PORT_NAME": "The port called NAME of `ratchet up`, such as `RATCHET_PORT_GATEWAY`.",
    "RATCHET_HUB": "`1` lets training and engines ask a model hub for models that are not on disk.",
    "RATCHET_ENGINE_URL": "The engine, for gateway and deployer; several replicas with commas between them.",
    "RATCHET_ENGINE_LOGPROBS_MODE": "vLLM's `--logprobs-mode`, for gateway and deployer.",
    "RATCHET_GATEWAY_URL": "The gateway, for commands, clients and services.",
    "RATCHET_COORDINATOR_URL": "The coordinator, for commands, clients, gateway and deployer.",
    "RATCHET_DEPLOYER_URL": "The deployer, for commands.",
    "RATCHET_CONSOLE_URL": "The console, for commands.",
    "RATCHET_WORKFLOWS_URL": "The workflow service, for commands and console.",
    "RATCHET_ANALYST_URL": "The analyst, for commands and console.",
    "RATCHET_REDACTION_DETECTORS": "Detectors that search every text after redaction's rules, with commas between.",
    "RATCHET_API_KEY": "The API key of commands and clients.",
    "RATCHET_GATEWAY_API_KEY": "The key of the gateway, for agents.",
    "RATCHET_ROLE": "For the evaluator of a shadow replay: the role whose answers it judges.",
    "RATCHET_UPSTREAM_URL_OPENAI": "Another address for `ratchet up --upstream openai`, such as a proxy; gets the key.",
    "RATCHET_UPSTREAM_URL_ANTHROPIC": "The same for `ratchet up --upstream anthropic`.",
    "RATCHET_STORAGE_KEY": "With it the stores of `ratchet up` encrypt what they write; earlier ones after it, with"
    " commas between them.",
    "RATCHET_UPSTREAM_KEY": "The key of the server whose URL `ratchet up --upstream` names, where it asks for one.",
    "RATCHET_STACK_ID": "Marks the processes of one start of a local stack.",
    "RATCHET_EMBEDDED_CLICKHOUSE_PASSWORD": "Password of the local stack's ClickHouse.",
    "RATCHET_REAL_DATA": "Folder with real trajectories, for tests.",
}
"""Variables that are no service's setting, or that several services and commands read."""

_ANY_NAME = re.compile(r"RATCHET_(PORT|TEST)_\w+")
"""Ports of `ratchet up`, which are checked as such, and variables of tests."""
_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
"""What Kubernetes sets for every service of a namespace."""
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.*")
"""What it sets `RATCHET_GATEWAY_PORT` to, for a service `ratchet-gateway`."""
_NEAR = 0.75
"""How much alike two names are, of which one may be the other misspelt."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a service: a field of its class."""

    name: str
    """In `ratchet.toml`."""
    variables: tuple[str, ...]
    """The environment variables that set it; the first one that is there counts."""
    is_secret: bool
    field: FieldInfo


def settings_in(kind: type[BaseSettings]) -> dict[str, Setting]:
    """The settings of a class by name, without those that all services share."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    made: dict[str, Setting] = {}
    for name, field in kind.model_fields.items():
        if name == SHARED:
            continue
        own, alias = prefix + name.upper(), field.validation_alias
        named: tuple[str, ...] = (own,)
        if isinstance(alias, AliasChoices):
            named = tuple(name for name in alias.choices if isinstance(name, str) and name.startswith(PREFIX))
        if own not in named and kind.model_config.get("populate_by_name"):
            named += (own,)
        made[name] = Setting(name, named, _is_secret(field), field)
    return made


def variables_in(kinds: Iterable[type[BaseSettings]]) -> set[str]:
    """All variables of several classes."""
    return {variable for kind in kinds for setting in settings_in(kind).values() for variable in setting.variables}


def named_in(settings: BaseModel) -> Iterator[str]:
    """The further variables that the values of settings name, such as those with the keys of providers."""
    for name in type(settings).model_fields:
        value: Any = getattr(settings, name)
        if name.endswith("_env") and value:
            yield value
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, BaseModel):
                yield from named_in(item)


def without_kubernetes(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables without the addresses that Kubernetes gives the names of ports, such as `tcp://10.0.0.1:8080`."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.upper().endswith("_PORT") and _KUBERNETES_PORT.fullmatch(value))
    }


def unknown(names: Iterable[str], known: set[str], named: Iterable[str] = ()) -> list[str]:
    """A sentence for each of the names that no program of ours reads."""
    read = {*known, *OTHERS, *named}
    faults: list[str] = []
    for name in sorted(names):
        spelled = name.upper()
        if spelled in read or _ANY_NAME.fullmatch(spelled) or _KUBERNETES.fullmatch(spelled):
            continue
        near = nearest(spelled.removeprefix(PREFIX), {variable.removeprefix(PREFIX): variable for variable in read})
        faults.append(f"there is no variable {name}{near}")
    return faults


def nearest(name: str, known: Iterable[str] | Mapping[str, str]) -> str:
    """`; did you mean ...?`, where one of the known names is near: by what a mapping has for it."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)
    if not near:
        return ""
    return f"; did you mean {known[near[0]] if isinstance(known, Mapping) else near[0]}?"


def holds_secret(annotation: Any, *, nested: bool = False) -> bool:
    """Whether a type is one of secrets: `SecretStr`, a choice or a list of it; `nested`: or a model that has one."""
    if annotation is SecretStr:
        return True
    if nested and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return any(_is_secret(model_field) for model_field in annotation.model_fields.values())
    return any(holds_secret(part, nested=nested) for part in get_args(annotation))


def _is_secret(field: FieldInfo) -> bool:
    return not field.repr or holds_secret(field.annotation)
