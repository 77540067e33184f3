"""The folders, links and files of a stack's state, with what lies elsewhere and is only linked into it.

Links within a state stay links: ClickHouse finds databases and tables by its own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StateTree:
    """What a state consists of. Names are relative to its directory, and contain no link."""

    folders: list[str] = field(default_factory=list[str])
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> the name in the state that it points to."""
    files: dict[str, Path] = field(default_factory=dict[str, Path])
    """Name -> where its content lies."""

    @property
    def size(self) -> int:
        """Bytes of all files that are still there."""
        size = 0
        for path in self.files.values():
            with suppress(FileNotFoundError):
                size += path.stat().st_size
        return size


def read_tree(directory: Path, names: tuple[str, ...], *, moving: bool = False) -> StateTree:
    """All below these names of a state. A link to elsewhere counts as the file or folder that it points to.

    `moving`: others write there, and what they remove meanwhile is left out. Raises `ConfigError` for a link to nothing
    and for a name that is no UTF-8, and `OSError`.
    """
    places = {directory / name: name for name in names if not (directory / name).is_symlink()}
    walk = _Walk(directory, places, moving)
    for name in names:
        if os.path.lexists(directory / name):
            walk.add(directory / name, name)
    while walk.later:
        walk.add_link(*walk.later.pop(0))
    return walk.tree


@dataclass(frozen=True, slots=True)
class _Walk:
    directory: Path
    places: dict[Path, str]
    """Real path -> name, of what is in the tree or comes into it."""
    moving: bool
    later: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    """Links that point into the state: where to is known once the links to elsewhere are followed."""
    tree: StateTree = field(default_factory=StateTree)

    def add(self, path: Path, name: str) -> None:
        """Add a path and all below it."""
        try:
            self._add(path, name)
        except FileNotFoundError:
            if not self.moving:
                raise

    def _add(self, path: Path, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name!a} is not UTF-8: a backup cannot name it") from error
        if path.is_symlink():
            next_path = Path(os.path.normpath(path.parent / path.readlink()))
            if next_path.is_relative_to(self.directory) or self._name_of(next_path) is not None:
                self.later.append((path, name))
            else:
                self.add_link(path, name)
        elif path.is_dir():
            self.tree.folders.append(name)
            for child in sorted(path.iterdir()):
                self.add(child, f"{name}/{child.name}")
        elif path.is_file():  # sockets and pipes of a stopped process hold nothing
            self.tree.files[name] = path

    def add_link(self, path: Path, name: str) -> None:
        """Add a link within the state as one, and in the place of any other what it points to."""
        target = Path(os.path.realpath(path))
        inside = self._name_of(target)
        if inside is not None:
            self.tree.links[name] = inside
        elif target.exists():
            self.places[target] = name
            self.add(target, name)
        else:
            raise ConfigError(f"{path} links to {target}, which is not there: a backup would lack it")

    def _name_of(self, path: Path) -> str | None:
        for place, name in self.places.items():
            if path.is_relative_to(place):
                return str(Path(name) / path.relative_to(place))
        return None
