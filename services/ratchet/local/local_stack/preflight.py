"""What is checked before anything starts or is made: ports, programs, room on the disk, every service's settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ratchet.core.errors import ConfigError, RatchetError
from ratchet.core.service.files import existing, free_bytes, shortage
from ratchet.local.local_stack.configuration import faults_of
from ratchet.local.local_stack.plan import StackPlan, chosen, further, make_plan
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import StackSecrets, read_secrets, read_version, require_in_place, require_readable

T = TypeVar("T")

START_BYTES = 1 << 30
"""A start needs this much: empty servers take some 100 MB, and the first days of data need somewhere to go."""


def planned(settings: StackSettings) -> StackPlan:
    """What a start would start. Raises `ConfigError` or `MissingExtra`, which name all that it would be refused for."""
    errors: list[RatchetError] = []

    def tried(check: Callable[[], T]) -> T | None:
        try:
            return check()
        except RatchetError as error:
            errors.append(error)
            return None

    tried(lambda: require_writable(settings.directory))
    tried(lambda: require_in_place(settings.directory))
    tried(lambda: require_readable(read_version(settings.directory), settings.directory))
    tried(lambda: require_room(settings.directory, free_bytes(settings.directory)))
    secrets = tried(lambda: read_secrets(settings.directory))
    plan = tried(lambda: make_plan(settings, secrets or StackSecrets()))
    known = {str(error) for error in errors}
    errors += [ConfigError(fault) for fault in setting_faults(settings, plan) if fault not in known]
    if errors or plan is None:
        raise one_error(errors)
    return plan


def setting_faults(settings: StackSettings, plan: StackPlan | None) -> list[str]:
    """All that is wrong with the settings of the services to start, as they would read them themselves."""
    names = [spec.configured_as for spec in (*chosen(settings.only)[1], *further(settings))]
    added = settings.env if plan is None else plan.env
    return list(faults_of(settings.file, os.environ, dict.fromkeys(names, added)))


def require_writable(directory: Path) -> None:
    """Raise `ConfigError` where no state can be kept."""
    folder = existing(directory)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"no stack can be kept in {directory}: {folder} is not a folder, or not writable")


def require_room(directory: Path, free: int) -> None:
    """Raise `ConfigError` when a stack in `directory` could not work for long."""
    missing = shortage(free, START_BYTES, directory)
    if missing is not None:
        raise ConfigError(f"{missing} for a start; streams, tables and snapshots grow to several GB with use")


def one_error(errors: list[RatchetError]) -> RatchetError:
    """The error of a start: one as it is, several as a list."""
    if len(errors) == 1:
        return errors[0]
    lines = "".join(f"\n  - {error}" for error in errors)
    return ConfigError(f"{len(errors)} things keep the stack from starting:{lines}")
