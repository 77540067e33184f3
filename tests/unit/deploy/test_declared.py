"""Every package that is imported is declared: for a service by the base or by its extra, elsewhere by any.

A script that runs in an environment of its own is declared by that environment's list of packages, a `*.txt` beside it.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.compose import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "local/local_stack": ["embedded"],
    "local/engine_local": ["engine"],
    "core/grammars": ["engine"],
    "core/chat_templates": ["engine"],
    "trainer_worker": ["trainer", "prompts"],
    "local/demo": ["demo", "real"],
    "console": ["real"],
    "analyst": ["analyst"],
}
"""The extras that a package of `services/ratchet` may need besides the base."""
HOSTS = {"extras/vllm_plugin": {"vllm", "huggingface-hub", "fastapi"}}
"""What a package of `services/ratchet` imports of the program that loads it, whose environment it runs in."""
LOCKED = REPOSITORY / "tests/clients/python"
"""Scripts of frameworks, each in an environment that a lock in `tests/clients/locks` lists to the last package."""
OURS = {path.stem for path in (REPOSITORY / "tools").rglob("*.py")} | {
    "ratchet",
    "ratchet_helpdesk",
    "tests",
    "examples",
    "tools",
}


def canonical(requirement: str) -> str:
    """The name of a requirement or a distribution, as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[><=; ~!]", requirement)[0]).lower()


def declared(*extras: str) -> set[str]:
    """The packages that the base and these extras declare."""
    listed = [*PROJECT["dependencies"], *(one for name in extras for one in PROJECT["optional-dependencies"][name])]
    return {canonical(one) for one in listed}


def statements(parent: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, without the expressions, which are many."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports from elsewhere."""
    for node in statements(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        yield from (top for name in names if (top := name.split(".")[0]) not in sys.stdlib_module_names | OURS)


def environment(path: Path) -> set[str]:
    """The packages of the environment that a file may run in, by the lists beside it."""
    lines = [line for listed in path.parent.glob("*.txt") for line in listed.read_text().splitlines()]
    return {canonical(line) for line in lines if line and not line.startswith("#")}


installed = functools.cache(packages_distributions)


def undeclared(folder: Path, known: set[str]) -> set[str]:
    """Imports of a folder whose packages are not declared."""
    distributions = installed()
    files = [path for path in folder.rglob("*.py") if "node_modules" not in path.parts and LOCKED not in path.parents]
    names = {name for path in files for name in imported(path) if canonical(name) not in environment(path)}
    return {name for name in names if not {canonical(one) for one in distributions.get(name, [name])} & known}


PACKAGES = REPOSITORY / "services/ratchet"
FOLDERS = sorted(
    path.parent.relative_to(PACKAGES).as_posix()
    for room in ("", "core", "local", "extras")
    for path in (PACKAGES / room).glob("*/__init__.py")
    if path.parent.name not in ("core", "local", "extras")
)


@pytest.mark.parametrize("service", FOLDERS)
def test_a_service_imports_packages_of_the_base_or_of_its_extras(service: str) -> None:
    assert (
        undeclared(
            REPOSITORY / "services/ratchet" / service, declared(*EXTRAS.get(service, [])) | HOSTS.get(service, set())
        )
        == set()
    )


@pytest.mark.parametrize("folder", ["tests", "examples", "tools"])
def test_everything_else_imports_declared_packages(folder: str) -> None:
    assert undeclared(REPOSITORY / folder, declared(*PROJECT["optional-dependencies"])) == set()
