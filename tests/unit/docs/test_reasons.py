"""The tables of reasons name exactly those that the code can give, each with the functions that give it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from ratchet.core.datasets.domain.rows import (
    COUNT_MISMATCH,
    IMPOSSIBLE_LOGPROBS,
    NO_IDS,
    PARENT_MISSING,
    PREFIX_MISMATCH,
)
from ratchet.core.rules.capture import REASONS, Reason, advice_of
from tests.support.pages import ROOT

DOMAIN = ROOT / "services" / "ratchet" / "core" / "datasets" / "domain"
GATEWAY = ROOT / "services" / "ratchet" / "gateway"
COORDINATOR = ROOT / "services" / "ratchet" / "rl_coordinator" / "README.md"
AGENTS = ROOT / "docs" / "guides" / "agent-author.md"
MODULES = ("selection", "rows", "pairs", "labels")
ROW = re.compile(r"^\| (`.+) \|$", re.MULTILINE)
TOKEN = re.compile(r"`([\w.]+)`")
Reasons = Mapping[str, set[str]]
"""Reason -> `<module>.<function>`."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a module names, `A, B = "a", "b"` included."""
    named: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                named[name] = text
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=True)
                named |= {ast.unparse(name): ast.literal_eval(value) for name, value in pairs}
            case _:
                pass
    return named


def texts(node: ast.expr | None, named: Mapping[str, str]) -> Iterator[str]:
    """The texts that an expression can be, and the keys of a mapping."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) if name in named:
            yield named[name]
        case ast.BoolOp(values=values) | ast.Dict(keys=values):
            for value in values:
                yield from texts(value, named)
        case ast.IfExp(body=body, orelse=other):
            yield from texts(body, named)
            yield from texts(other, named)
        case _:
            pass


def given_in(function: ast.FunctionDef, named: Mapping[str, str], rules: ast.expr | None) -> Iterator[str]:
    """The reasons that a function gives: returned, put into `reason` or `prompts[...]`, counted in `left_out[...]`."""
    for node in ast.walk(function):
        match node:
            case ast.Return(value=value):
                yield from texts(value, named)
            case ast.Assign(targets=[ast.Name(id="reason") | ast.Subscript(value=ast.Name(id="prompts"))], value=value):
                yield from texts(value, named)
            case ast.Subscript(value=ast.Name(id="left_out"), slice=key):
                yield from texts(key, named)
            case ast.Name(id="_RULES"):
                yield from texts(rules, named)
            case _:
                pass


def names_of_datasets() -> Mapping[str, str]:
    """The texts that the datasets' rules name."""
    return {name: text for module in MODULES for name, text in constants(parsed(DOMAIN / f"{module}.py")).items()}


def reasons_of_snapshots() -> Reasons:
    """The reasons of the datasets' rules."""
    trees = {module: parsed(DOMAIN / f"{module}.py") for module in MODULES}
    named = names_of_datasets()
    reasons: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        tables = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
        rules = next((node.value for node in tables if ast.unparse(node.target) == "_RULES"), None)
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            for reason in given_in(function, named, rules):
                if reason:
                    reasons[reason].add(f"{module}.{function.name}")
    return reasons


def rows_below(page: Path, heading: str) -> list[list[list[str]]]:
    """The names in each cell of every row that begins with a name, in the tables of a section."""
    section = page.read_text().partition(f"# {heading}\n")[2].partition("\n## ")[0]
    return [[TOKEN.findall(cell) for cell in row.split(" | ")] for row in ROW.findall(section)]


def test_the_readme_names_every_reason_and_the_functions_that_decide_it() -> None:
    rows = rows_below(COORDINATOR, "Reasons")

    assert [len(cells) for cells in rows] == [3] * len(rows)
    assert {reason: set(functions) for (reason,), functions, _ in rows} == reasons_of_snapshots()
    assert len(rows) == len(reasons_of_snapshots()) > 20


def test_every_text_that_the_rules_name_is_a_reason_but_for_three() -> None:
    """The others: people as a source of preferences, a rater without a name, the kind of thumbs."""
    assert set(names_of_datasets().values()) - set(reasons_of_snapshots()) == {"human", "unnamed", "thumbs"}


def test_guide_has_the_table_of_reasons_for_which_no_learner_may_use_call() -> None:
    section = AGENTS.read_text().partition("# What makes a call trainable\n")[2].partition("\n## ")[0]
    rows = [f"| `{reason}` | {one.place} | {one.meaning} | {one.remedy} |" for reason, one in REASONS.items()]

    assert [line for line in section.splitlines() if line.startswith("| `")] == rows


def test_every_reason_that_a_snapshot_gives_for_a_call_is_in_the_table() -> None:
    shared = {NO_IDS, PARENT_MISSING, PREFIX_MISMATCH, COUNT_MISMATCH, IMPOSSIBLE_LOGPROBS}
    assert shared <= set(Reason)
    given = constants(parsed(DOMAIN / "rows.py"))

    assert {*given.values()} & set(Reason) == shared


def test_the_table_has_every_reason_once_in_whole_sentences() -> None:
    assert list(REASONS) == list(Reason)
    assert all(reason.meaning.endswith(".") and reason.remedy.endswith(".") for reason in REASONS.values())


def test_the_gateway_names_no_reason_as_a_bare_text() -> None:
    """Its functions give `Reason`, which the type checker holds; a text in their place would not be one."""
    nodes = [node for path in GATEWAY.rglob("*.py") for node in ast.walk(parsed(path))]
    given = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg in {"barred", "reason"}]

    assert len(given) > 10
    assert {text for value in given for text in texts(value, {})} & set(Reason) == set()


def test_a_reason_of_a_later_version_is_unknown() -> None:
    assert advice_of("of_a_later_version") == REASONS[Reason.UNKNOWN]
    assert advice_of("top_p") == REASONS[Reason.TOP_P]
