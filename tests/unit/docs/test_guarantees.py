"""Every promise names a test that would break with it, its conditions, and what is not promised."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
COMMAND = re.compile(r"`make (\w[\w-]*)`")
ROW = re.compile(r"^\| (?P<id>[A-Z]\d+) \| (?P<rest>.*) \|$", re.MULTILINE)
CELL = re.compile(r"(?<!\\)\|")


def rows() -> dict[str, list[str]]:
    """Cells of every promise after its id: statement, conditions, tests, not promised."""
    return {row["id"]: [cell.strip() for cell in CELL.split(row["rest"])] for row in ROW.finditer(PAGE.read_text())}


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )


@pytest.mark.parametrize("promise", sorted(rows()))
def test_a_promise_is_complete(promise: str) -> None:
    cells = rows()[promise]
    assert len(cells) == 4
    assert all(cells), "a promise without conditions or limits was not thought through"


@pytest.mark.parametrize("promise", sorted(rows()))
def test_the_tests_behind_a_promise_exist(promise: str) -> None:
    tests = TEST.findall(rows()[promise][2])
    assert tests
    assert [f"{path}::{name}" for path, name in tests if name not in names_in(ROOT / path)] == []


def test_the_commands_behind_promises_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(COMMAND.findall(PAGE.read_text())) <= targets


def test_every_promise_stands_once() -> None:
    assert len(ROW.findall(PAGE.read_text())) == len(rows()) > 20


@pytest.mark.parametrize("page", ["README.md", "docs/README.md", "docs/architecture.md", "docs/operations.md"])
def test_pages_that_promise_point_to_the_table(page: str) -> None:
    assert "guarantees.md" in (ROOT / page).read_text()
