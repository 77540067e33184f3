"""BFCL's tasks as its package has them: what is shown is right, halves share nothing, BFCL's own checker agrees."""

from __future__ import annotations

import copy
import importlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tools.learning.worlds.bfcl import Entry, bfcl, entries, halves

try:
    version("bfcl-eval")
except PackageNotFoundError:
    pytest.skip("no BFCL here: `make tasks`", allow_module_level=True)

CHECKER = "bfcl_eval.eval_checker.ast_eval.ast_checker"
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -3,
    2.5,
    "",
    "x",
    [],
    [1],
    ["a", "b"],
    {},
    {"a": 1},
    [[1]],
    [{"a": 1}],
    10**30,
]


def test_every_answer_that_is_shown_is_right() -> None:
    for entry in entries():
        last = entry.demonstration().messages[-1]
        calls = [call["function"] for call in last.get("tool_calls") or []]
        read = [(call["name"], call["arguments"]) for call in calls]
        assert entry.judge(last["content"] or "", read).success, entry.task_id


def test_halves_share_no_function_and_are_alike_in_size() -> None:
    training, held_out = halves(entries())
    names = [{name for entry in half for name in entry.names} for half in (training, held_out)]
    assert not names[0] & names[1]
    assert abs(len(training) - len(held_out)) <= 2


def test_an_exam_is_of_the_held_out_half_whatever_the_seed() -> None:
    first, other = bfcl(0), bfcl(1)
    assert [entry.task_id for entry in first.exam] == [entry.task_id for entry in other.exam]
    assert not {entry.task_id for entry in first.exam} & {entry.task_id for entry in first.tasks}
    assert [row.trajectory_id for row in first.stages()[0].rows()] != [
        row.trajectory_id for row in other.stages()[0].rows()
    ]


@pytest.fixture(scope="module")
def checker() -> Iterator[Any]:
    """BFCL's own. Its module asks for the table of all model providers, and for two languages' parsers: none is used
    for Python's calls, and their packages are not installed.
    """
    unused = {
        "bfcl_eval.constants.model_config": {"MODEL_CONFIG_MAPPING": {"any": SimpleNamespace(underscore_to_dot=False)}},
        "bfcl_eval.eval_checker.ast_eval.type_convertor.java_type_converter": {"java_type_converter": None},
        "bfcl_eval.eval_checker.ast_eval.type_convertor.js_type_converter": {"js_type_converter": None},
    }
    for name, members in unused.items():
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    yield importlib.import_module(CHECKER)
    for name in (*unused, CHECKER):
        sys.modules.pop(name)


def test_bfcls_own_checker_judges_every_call_alike(checker: Any) -> None:
    python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
    draw, judged = random.Random(0), Counter[bool]()
    for entry in entries():
        name, accepted = entry.truth
        for arguments in answers(entry, draw):
            ours = entry.judge("", [(name, json.dumps(arguments))]).success
            theirs = checker.ast_checker(
                list(entry.functions), [{name: arguments}], [{name: accepted}], python, "simple_python", "any"
            )
            assert ours == theirs["valid"], (entry.task_id, arguments, theirs["error"])
            judged[ours] += 1
    assert min(judged.values()) > 1000


def answers(entry: Entry, draw: random.Random) -> list[Any]:
    """Accepted arguments, and what is near to them."""
    _, accepted = entry.truth
    right = [
        {name: copy.deepcopy(draw.choice(values)) for name, values in accepted.items() if draw.random() < 0.9}
        for _ in range(8)
    ]
    return [*right, *(spoiled(draw.choice(right), draw) for _ in range(16))]


def spoiled(arguments: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """With one change."""
    changed = copy.deepcopy(arguments)
    if not changed:
        return {"unknown": 1}
    name, way = draw.choice(list(changed)), draw.randrange(5)
    value = changed[name]
    if way == 0:
        del changed[name]
    elif way == 1:
        changed["unknown"] = draw.choice(ODD)
    elif isinstance(value, str) and way == 2:
        changed[name] = value.upper().replace(" ", "-")
    elif type(value) is int and way == 2:
        changed[name] = float(value)
    else:
        changed[name] = draw.choice(ODD)
    return changed
