"""Packages of other people, as an installer leaves them: modules beside a `dist-info` with entry points."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def write_package(directory: Path, name: str, module: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """A distribution `name` 1.0 with one module of that name. `entries`: group -> name -> `module:attribute`."""
    (directory / f"{name}.py").write_text(textwrap.dedent(module))
    information = directory / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in named.items())
        for group, named in entries.items()
    )
    (information / "entry_points.txt").write_text("\n".join(groups))


@contextmanager
def installed(directory: Path) -> Iterator[None]:
    """Within the block the packages below `directory` can be imported, and their entry points are seen."""
    known = {*sys.modules}
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for name in {*sys.modules} - known:
            if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
