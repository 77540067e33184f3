"""Holds names and sentences against the glossary's table of words that we do not use.

    python tools/words.py [PATH ...]

An identifier is looked at part by part: `retold_by` has the parts `retold` and `by`. Sentences are docstrings,
comments, texts that the program shows, and the pages of the documentation.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
HEADING = "## Words we do not use"
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
CODE_IN_PAGE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Words:
    """What is not used, each with what to write instead."""

    identifiers: Mapping[str, str]
    sentences: Mapping[str, str]


def words(page: str) -> Words:
    """The table of the glossary: `| in | not | but |`. Raises `ValueError` for a page without one."""
    rows = re.findall(r"^\| (names|sentences) \| ([^|]+) \| ([^|]+) \|$", page.partition(HEADING)[2], re.MULTILINE)
    if not rows:
        raise ValueError(f"{GLOSSARY.name} has no table below {HEADING!r}")
    tables: dict[str, dict[str, str]] = {"names": {}, "sentences": {}}
    for place, banned, instead in rows:
        for word in banned.replace("`", "").split(","):
            tables[place][word.strip()] = instead.strip()
    return Words(tables["names"], tables["sentences"])


def findings(path: Path, banned: Words) -> Iterator[str]:
    """Every use of a word that we do not use, as `path:line: word: what instead`."""
    content = path.read_text()
    sources = _in_python(content) if path.suffix == ".py" else _in_page(content)
    for line, kind, text in sources:
        table = banned.identifiers if kind == "name" else banned.sentences
        parts = [part.lower() for part in PART.findall(text)]
        for part in dict.fromkeys(parts):
            if part in table and not (part == "found" and "not" in parts):
                yield f"{path}:{line}: {part} (in `{text.strip()[:60]}`): {table[part]}"


def _in_python(text: str) -> Iterator[tuple[int, str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "sentence", token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            yield node.lineno, "name", node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, "name", node.arg
        elif isinstance(node, ast.Attribute):
            yield node.lineno, "name", node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, "name", node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, "sentence", node.value


def _in_page(text: str) -> Iterator[tuple[int, str, str]]:
    prose = CODE_IN_PAGE.sub(lambda code: "\n" * code[0].count("\n"), text.partition(HEADING)[0])
    for number, line in enumerate(prose.splitlines(), 1):
        yield number, "sentence", line


def main(arguments: list[str]) -> int:
    """Look at the given paths, or at all that git tracks; 1 when a word is used that we do not use."""
    banned = words(GLOSSARY.read_text())
    command = ["git", "ls-files", "--", *arguments] if arguments else ["git", "ls-files", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603 - git
    names = [name for name in listed if name.endswith((".py", ".md"))]
    wrong = [finding for name in names for finding in findings(ROOT / name, banned)]
    sys.stderr.writelines(f"{finding.removeprefix(f'{ROOT}/')}\n" for finding in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
