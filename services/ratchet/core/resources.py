"""Finds the files that belong to the package but are not Python: `contracts`, `deploy`."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.errors import NotFound

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]


def resource_dir(name: str) -> Path:
    """The directory `name`: of the checkout when running from one, else the copy in the installed package."""
    in_checkout = (_CHECKOUT / "pyproject.toml").is_file()
    directory = _CHECKOUT / name if in_checkout else _PACKAGE / "_resources" / name
    if not directory.is_dir():
        raise NotFound(f"no directory {directory}: the installation is incomplete")
    return directory
