"""The map in tests/README.md has every shared file and every benchmark, with the first sentence of each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ROW = re.compile(r"^\| \[`[\w.]+`\]\(([\w./]+)\) \| (.+) \|$", re.MULTILINE)
ROOTS = (TESTS.parent, TESTS.parent / "services", TESTS.parent / "examples" / "helpdesk")
PACKAGES = ("ratchet", "ratchet_helpdesk", "tests")
BENCHMARKS = sorted((TESTS / "bench").glob("*.py"))


def first_sentence(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line."""
    return " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())


def test_map_has_every_shared_file_and_benchmark_with_its_first_sentence() -> None:
    files = [*sorted((TESTS / "support").glob("*.py")), *BENCHMARKS]
    expected = {str(path.relative_to(TESTS)): first_sentence(path) for path in files}
    assert dict(ROW.findall((TESTS / "README.md").read_text())) == expected


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a module binds, also below conditions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.If):
            yield from names_in([*node.body, *node.orelse])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def source_of(module: str) -> Path | None:
    """The file of a module of this repository."""
    places = [root.joinpath(*module.split(".")) for root in ROOTS]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def missing_imports(path: Path) -> Iterator[str]:
    """Names that a file imports from modules of this repository, and that are not there; no module is run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            source = source_of(node.module or "")
            known = set(names_in(ast.parse(source.read_text()).body)) if source else set[str]()
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in known)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_imports_names_that_exist(path: Path) -> None:
    assert list(missing_imports(path)) == []


def test_a_name_that_is_gone_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "bench.py"
    file.write_text(
        "from ratchet.core.errors import NotFound, Gone\nfrom ratchet.gone import x\nfrom pathlib import Path\n"
    )
    assert list(missing_imports(file)) == ["ratchet.core.errors.Gone", "ratchet.gone.x"]
