"""The import rules of pyproject.toml know every package: none is left out because it is new."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import ratchet
from ratchet.local.local_stack.catalog import SERVICES

FOLDER = Path(ratchet.__file__).parent
PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
RULES: list[Any] = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
ROOMS = {"core", "local", "extras"}
"""Folders of packages."""
PACKAGES = {
    ".".join(("ratchet", *path.relative_to(FOLDER).parts[:-1]))
    for room in ("", *ROOMS)
    for path in (FOLDER / room).glob("*/__init__.py")
    if path.parent.name not in ROOMS
}
APART = {
    *("ratchet.extras.trackers", "ratchet.extras.span_exporter", "ratchet.notifier", "ratchet.workflows"),
    "ratchet.analyst",
}
"""Services that only some local stacks start."""
MODULES = {f"ratchet.core.{path.stem}" for path in (FOLDER / "core").glob("*.py") if path.stem != "__init__"}


def rule(name: str) -> Any:
    (one,) = [rule for rule in RULES if rule["name"].startswith(name)]
    return one


def test_every_package_has_its_place_among_the_layers() -> None:
    named = {name for layer in rule("bus <- core")["layers"] for name in re.findall(r"[\w.]+", layer)}
    assert named - {"ratchet_helpdesk"} == PACKAGES | MODULES


def test_every_service_has_the_anatomy_of_a_service() -> None:
    assert set(rule("Inside a service")["containers"]) == {spec.module for spec in SERVICES} | APART


def test_every_package_but_engine_and_training_is_kept_from_torch() -> None:
    named = {name.removesuffix(".*") for name in rule("Only the training process")["source_modules"]}
    assert named - {"ratchet_helpdesk"} == PACKAGES - {
        "ratchet.local.engine_local",
        "ratchet.core.grammars",
        "ratchet.core.chat_templates",
    }


def test_the_command_reaches_no_service() -> None:
    assert set(rule("The command speaks")["forbidden_modules"]) == {spec.module for spec in SERVICES} | APART
