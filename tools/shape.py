"""Prints the shape of the code: how long files and functions are, and how much of it is imports and one-use helpers.

    python tools/shape.py [FOLDER ...]

The figures inform, they gate nothing. Lengths of files and functions are lines of code: no blank ones, no comments, no
docstrings. A one-use helper is a private function or method that is named once beside its definition, in its own file;
it is counted against all functions, and imports against all lines.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = 50
"""A file with fewer lines of code than this is small."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Shape:
    """What was measured in some files."""

    files: list[int] = field(default_factory=list[int])
    """Lines of code of each."""
    functions: list[int] = field(default_factory=list[int])
    """Lines of code of each, its nested functions included."""
    lines: int = 0
    """All lines, blank ones and docstrings included."""
    imports: int = 0
    """Lines that import."""
    one_use: int = 0
    """Private functions and methods that are used once."""


def measured(paths: Sequence[Path]) -> Shape:
    """The shape of these files."""
    shape = Shape()
    for path in paths:
        source = path.read_text()
        tree = ast.parse(source)
        code = _code_lines(source, tree)
        shape.files.append(len(code))
        shape.lines += source.count("\n")
        shape.functions += [len(code & _span(node)) for node in ast.walk(tree) if isinstance(node, Function)]
        shape.imports += len(
            {line for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for line in _span(node)}
        )
        for name in _private(tree):
            shape.one_use += len(re.findall(rf"\b{name}\b", source)) == 2
    return shape


def report(shape: Shape) -> list[tuple[str, str]]:
    """The figures with their names."""
    return [
        ("files", f"{len(shape.files):,}"),
        ("lines / lines of code", f"{shape.lines:,} / {sum(shape.files):,}"),
        ("file p50 / p95 / longest", _spread(shape.files)),
        (f"files below {SMALL} lines", f"{_share(sum(length < SMALL for length in shape.files), len(shape.files))}"),
        ("function p50 / p95 / longest", _spread(shape.functions)),
        ("import lines", _share(shape.imports, shape.lines)),
        ("one-use helpers", f"{_share(shape.one_use, len(shape.functions))} ({shape.one_use:,})"),
    ]


def main() -> int:
    """Measure the folders, and count what git tracks."""
    parser = argparse.ArgumentParser(description="Prints the shape of the code.")
    parser.add_argument("folders", nargs="*", default=["services", "tests", "tools"], help="folders to measure")
    for folder in parser.parse_args().folders:
        print(folder)  # noqa: T201 - what this program is for
        for name, figure in report(measured(sorted((ROOT / folder).rglob("*.py")))):
            print(f"  {name:<30} {figure}")  # noqa: T201
    print(f"tracked lines {_tracked():,}")  # noqa: T201
    return 0


def _code_lines(source: str, tree: ast.AST) -> set[int]:
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - {line for text in _texts(tree) for line in _span(text)}


def _texts(tree: ast.AST) -> Iterator[ast.Expr]:
    """Docstrings, also those below a field or a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def _private(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name.startswith("_") and not node.name.endswith("__"):
            yield node.name


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _spread(sizes: Sequence[int]) -> str:
    ordered = sorted(sizes)
    return f"{statistics.median(ordered):g} / {ordered[int(0.95 * (len(ordered) - 1))]} / {ordered[-1]}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _tracked() -> int:
    """Pictures and weights have no lines."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    paths = [ROOT / name for name in listed.split("\0") if name]
    contents = (path.read_bytes() for path in paths if path.is_file())
    return sum(content.count(b"\n") for content in contents if b"\0" not in content[:8000])


if __name__ == "__main__":
    sys.exit(main())
