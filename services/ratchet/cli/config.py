"""`ratchet config`: the settings that services get, where each comes from, and what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, errors, print_answer, print_table
from ratchet.core.errors import ConfigError, NotFound
from ratchet.core.service.setting_names import nearest
from ratchet.core.service.settings import SharedSettings
from ratchet.core.service.settings_file import SettingsFile, find_file, without_passwords
from ratchet.local.local_stack.catalog import ALL_SERVICES
from ratchet.local.local_stack.configuration import CLIENT, Effective, effective, faults_of, kinds, tables, warnings_of
from ratchet.local.local_stack.state import StackRecord

app = typer.Typer(no_args_is_help=True)

MASKED = "(secret)"
EVERY = "(all)"
"""Stands for every service in the list of what is set."""


@app.command("show")
def show(
    service: Annotated[
        str, typer.Argument(help="All settings of this service; without one, what is set of every service.")
    ] = "",
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Show the settings in effect and where each comes from; secrets are masked."""
    file, record = find_file(os.environ), locate(directory).record
    stack = {} if record is None else record.env
    every = {EVERY: SharedSettings, **kinds()}
    names = [_service(service)] if service else list(every)
    given = {name: {**stack, **_given_by_stack(name, record, directory)} for name in names}
    in_effect = {name: effective(every[name], file, os.environ, given[name]) for name in names}
    of_all = [] if service else in_effect[EVERY]
    shown = {
        name: [
            (effect.setting.name, _value(effect), effect.origin)
            for effect in settings
            if service or (effect.origin is not None and (name == EVERY or effect not in of_all))
        ]
        for name, settings in in_effect.items()
    }
    document = {
        "file": str(file.path) if file.path else None,
        "services": {
            name: [{"setting": setting, "value": value, "origin": origin} for setting, value, origin in rows]
            for name, rows in shown.items()
        },
    }
    print_answer(document, as_json, lambda: _draw(file, shown))


@app.command("check")
def check(as_json: AsJson = False) -> None:
    """Check all settings of all services, and report all that is wrong at once. Exit code 1: something is."""
    file = find_file(os.environ)
    services: dict[str, dict[str, str]] = {name: {} for name in kinds()}
    faults = list(faults_of(file, os.environ, services))
    if faults:
        raise ConfigError(
            faults[0] if len(faults) == 1 else "\n  - ".join([f"{len(faults)} settings are wrong:", *faults])
        )
    for warning in warnings_of(file, os.environ):
        errors.print(warning, markup=False)
    where = f"the environment and {file.path}" if file.path else "the environment; there is no ratchet.toml here"
    print_answer({"file": str(file.path) if file.path else None, "faults": []}, as_json, f"nothing is wrong in {where}")


def _given_by_stack(name: str, record: StackRecord | None, directory: Path) -> dict[str, str]:
    """What a running stack gives this service alone: its ports, and its folder of data."""
    member = record.services.get(name) if record is not None else None
    if member is None:
        return {}
    ports = {"RATCHET_HEALTH_PORT": str(member.health_port)} if member.health_port is not None else {}
    spec = next((spec for spec in ALL_SERVICES if spec.name == name), None)
    if spec is not None and spec.port is not None:
        ports[spec.port_variable] = str(member.port)
    return {**ports, "RATCHET_DATA_DIR": str(directory.resolve() / "data" / name)}


def _service(name: str) -> str:
    """The full name of a service. Raises `NotFound`."""
    known = {**{other: full for other, full in tables().items() if full in kinds()}, CLIENT: CLIENT}
    if name not in known:
        near = nearest(name, known) or f"; there are {', '.join(kinds())}"
        raise NotFound(f"no service {name} has settings{near}")
    return known[name]


def _value(one: Effective) -> Any:  # of any type: each setting has its own
    """The value as it may be shown."""
    if one.setting.is_secret and one.value not in (None, "", []):
        return MASKED
    return without_passwords(json.loads(json.dumps(one.value, default=str)), one.setting.name)


def _draw(file: SettingsFile, services: dict[str, list[tuple[str, Any, str | None]]]) -> None:
    console.print(f"settings file: {file.path or 'none'}", markup=False)
    rows = [
        (name, setting, value if isinstance(value, str) else json.dumps(value), origin or "default")
        for name, settings in services.items()
        for setting, value, origin in settings
    ]
    print_table(("service", "setting", "value", "from"), rows, "every setting has its default")
