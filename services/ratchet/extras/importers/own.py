"""An importer that is one function of a user's own: `ratchet import python logs.py:conversation runs.jsonl`.

The function gets one record (a parsed JSON value or a row of a table) and gives back an `ImportedTrajectory`, an
`ImportedPreference`, several of them, or None for a record that is none. What it raises is reported with the record.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from ratchet.core.contract import JsonObject
from ratchet.core.errors import ConfigError
from ratchet.extras.importers.base import (
    Imported,
    ImportedPreference,
    ImportedTrajectory,
    Importer,
    ImportOptions,
    MalformedRecord,
)
from ratchet.extras.importers.building import preference_from, trajectory_from

SOURCE = "python"
Function = Callable[[object], object]


def importer_of(name: str, group_by: str | None = None, source: str | None = None) -> Importer:
    """The importer of a function, named as `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    `group_by`: a member of the records; the function then gets the list of all records that are equal in it. `source`:
    within it an id of the records is one trajectory; else the name of the function, in whatever folder its file is.
    Raises `ConfigError` where there is no such function.
    """
    function = _function(name)
    place, _, attribute = name.rpartition(":")
    # `logs:conversation` of `exports/logs.py:conversation`
    space = source or f"{Path(place).stem if place.endswith('.py') else place}:{attribute}"

    def messages_of(record: object, options: ImportOptions) -> Iterator[Imported]:
        try:
            returned = function(record)
            is_one = isinstance(returned, ImportedTrajectory | ImportedPreference)
            several = isinstance(returned, Iterable) and not is_one
            given = list(cast("Iterable[object]", returned)) if several else [returned]
        except Exception as error:  # the boundary: code of the user's own, and one bad record must not end the import
            raise MalformedRecord(f"{type(error).__name__}: {error}") from error
        for made in given if returned is not None else ():
            if isinstance(made, ImportedTrajectory):
                own_id = None if made.id is None else f"{space}/{made.id}"
                yield trajectory_from(replace(made, id=own_id), options, SOURCE)
            elif isinstance(made, ImportedPreference):
                yield preference_from(made, options, SOURCE)
            else:
                raise MalformedRecord(f"{name} gave back a {type(made).__name__}, not an ImportedTrajectory")

    def group_of(record: object) -> str | None:
        value: object = cast("JsonObject", record).get(group_by or "") if isinstance(record, dict) else None
        if value is None:
            raise MalformedRecord(f"has no {group_by}")
        return str(value)

    return Importer(summary=name, messages_of=messages_of, group_of=group_of if group_by else None)


def _function(name: str) -> Function:
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise ConfigError(f"{name!r} names no function: FILE.py:FUNCTION, or package.module:FUNCTION")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        function: object = getattr(module, attribute)
    except Exception as error:  # the boundary: importing runs code of the user's own
        raise ConfigError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{name} is a {type(function).__name__}, not a function")
    return function


def _of_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"ratchet_import_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
