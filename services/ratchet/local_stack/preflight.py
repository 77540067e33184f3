"""What is checked before anything starts or is made: ports, programs, room on the disk, every service's settings."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module

from ratchet.errors import ConfigError
from ratchet.local_stack.catalog import SERVICES, TRACKER
from ratchet.local_stack.disk import require_room
from ratchet.local_stack.plan import StackPlan, make_plan
from ratchet.local_stack.secrets import read_secrets
from ratchet.local_stack.settings import StackSettings
from ratchet.service.disk import existing, free_bytes
from ratchet.service.settings import read


def planned(settings: StackSettings) -> StackPlan:
    """What a start would start. Raises `ConfigError` or `MissingExtra` for what it would be refused for."""
    plan = make_plan(settings, read_secrets(settings.directory))
    folder = existing(settings.directory)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"no stack can be kept in {settings.directory}: {folder} is no folder that this user may write to"
        )
    require_room(settings.directory, free_bytes(settings.directory))
    check_settings(plan)
    return plan


def check_settings(plan: StackPlan) -> None:
    """Read the settings of every service of the plan as it would itself. Raises `ConfigError`, with its name."""
    programs = {program.name: program for program in plan.programs}
    for spec in (*SERVICES, TRACKER):
        if spec.name in programs:
            kind = import_module(f"{spec.module}.settings").Settings
            with _environment(programs[spec.name].env):
                try:
                    read(kind)
                except ConfigError as error:
                    raise ConfigError(f"{spec.name}: {error}") from error


@contextmanager
def _environment(added: Mapping[str, str]) -> Generator[None]:
    """This process's environment with what the service is given besides."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
