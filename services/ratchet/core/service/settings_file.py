"""The settings file, `ratchet.toml`: shared settings at its top, and a table for each service.

    log_level = "warning"

    [gateway]
    upstreams = [{name = "openai", base_url = "https://api.openai.com/v1", api_key_env = "OPENAI_API_KEY",
                  models = {"*" = "*"}}]

    [canary_deployer]
    stages = [5, 25]

A value becomes the text that its variable would hold, so both are checked by the same rules. The environment wins.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic_settings import BaseSettings

from ratchet.core.errors import ConfigError
from ratchet.core.service.setting_names import Setting, holds_secret, nearest, settings_in

FILE_VARIABLE, DEFAULT_FILE = "RATCHET_CONFIG", Path("ratchet.toml")

_USER = re.compile(r"//[^/?#\s]+@")
"""A user in a URL, with a password or without: to NATS a user alone is a token."""
_PASSWORD = re.compile(r"//[^/?#\s:@]*:(?:(?!://)\S)*@")
"""A password in a URL that holds `/`, `?` or `#`, which it should not: rather mask too much than show a part of it."""
_BARE_USER = re.compile(r"^[^/?#\s]+@")
"""The same in an address without a scheme, such as `user:password@nats:4222`; elsewhere `support@3` is a policy."""
_ADDRESS = re.compile(r".*(url|urls|endpoint|upstream)")
"""What a name is whose value is an address."""

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class FromFile:
    """What a file says about one service."""

    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Variables and the texts that they would hold."""
    places: dict[str, str] = field(default_factory=dict[str, str])
    """By variable, where in the file its value stands."""
    faults: list[str] = field(default_factory=list[str])
    """Sentences about names that do not exist, and about secrets."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file that was read."""

    path: Path | None = None
    """None: there is no file."""
    content: Table = field(default_factory=dict[str, object])

    def table(self, name: str) -> Table:
        """The table of a service. Raises `ConfigError` for a value that is no table."""
        given = self.content.get(name, {})
        if not isinstance(given, dict):
            raise ConfigError(f"{name} in {self.path} is not a table: write [{name}] above its settings")
        return cast("Table", given)

    def of(self, service: str, own: type[BaseSettings], shared: type[BaseSettings]) -> FromFile:
        """What the file sets for a service, by its table and by the settings that all share.

        Names at the top of the file that are none are the fault of no service: see `strangers`.
        """
        taken = FromFile()
        mine, all_have = settings_in(own), settings_in(shared)
        for name, value in self.content.items():
            if name in all_have:
                self._take(taken, all_have[name], value, name)
        known = {**all_have, **mine}
        for name, value in self.table(service).items():
            if name in known:
                self._take(taken, known[name], value, f"{service}.{name}")
            else:
                taken.faults.append(f"there is no setting {service}.{name} in {self.path}{nearest(name, list(known))}")
        return taken

    def strangers(self, tables: Mapping[str, str], shared: type[BaseSettings]) -> list[str]:
        """A sentence for each name at the top of the file that is neither a table nor a setting that all share.

        `tables`: those there are, by other names of them.
        """
        known = {*tables.values(), *settings_in(shared)}
        return [
            f"there is no {'table' if isinstance(value, dict) else 'setting'} {name} in {self.path}"
            + (f"; did you mean {tables[name]}?" if name in tables else nearest(name, known))
            for name, value in self.content.items()
            if name not in known
        ]

    def _take(self, taken: FromFile, setting: Setting, value: object, place: str) -> None:
        where = f"{place} in {self.path}"
        if secret := next(_secrets(setting, value), None):
            taken.faults.append(
                f"{where}: {secret} is a secret, and none belongs in a file: set {setting.variables[0]}"
            )
        elif isinstance(value, datetime | date | time):
            taken.faults.append(f"{where}: no setting is a date; write it as text")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            taken.variables[setting.variables[0]] = text
            taken.places[setting.variables[0]] = where


def find_file(environment: Mapping[str, str], directory: Path = Path()) -> SettingsFile:
    """The file that `RATCHET_CONFIG` names, else `ratchet.toml` in `directory` if there is one.

    Raises `ConfigError` for one that is named and not there, and one that is no TOML.
    """
    named = environment.get(FILE_VARIABLE)
    path = directory / DEFAULT_FILE if named is None else Path(named)
    if named == "" or (named is None and not path.is_file()):
        return SettingsFile()
    try:
        return SettingsFile(path, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}, which {FILE_VARIABLE} names, cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def without_passwords(value: Any, name: str) -> Any:  # any value of JSON
    """What a setting of this name holds, with what stands for user and password in each address replaced."""
    if isinstance(value, str):
        masked = _USER.sub("//***@", _PASSWORD.sub("//***@", value))
        return _BARE_USER.sub("***@", masked) if _ADDRESS.fullmatch(name) else masked
    if isinstance(value, dict):
        of_addresses = _ADDRESS.fullmatch(name) is not None
        parts = cast("dict[str, Any]", value).items()
        return {key: without_passwords(part, name if of_addresses else key) for key, part in parts}
    if isinstance(value, list):
        return [without_passwords(item, name) for item in cast("list[Any]", value)]
    return value


def _secrets(setting: Setting, value: object) -> Iterator[str]:
    """The names of what a value holds that must stay secret."""
    if value in ("", [], {}):
        return
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):  # a table or a list, as a variable holds it
        with suppress(ValueError):  # such text is refused as what it is
            value = json.loads(value)
    if setting.is_secret:
        yield setting.name
    elif without_passwords(value, setting.name) != value:
        yield f"the password in {setting.name}"
    elif holds_secret(setting.field.annotation, nested=True):
        models = list(_models(setting.field.annotation))
        secret = {
            name for model in models for name, part in model.model_fields.items() if holds_secret(part.annotation)
        }
        yield from (f"{setting.name}.{name}" for name in _keys(value) if name in secret)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models(part)


def _keys(value: object) -> Iterator[str]:
    """The names in a value, at any depth."""
    if isinstance(value, dict):
        for name, part in cast("dict[str, object]", value).items():
            yield name
            yield from _keys(part)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _keys(item)
