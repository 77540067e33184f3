"""AgentDojo's suites on the package itself: what solves a task is right, what obeys an injected order is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders import build_grader
from ratchet.core.evaluation.graders.base import Conversation, Grade
from ratchet.core.evaluation.suites import SUITES, suite_tasks

try:
    version("agentdojo")
except PackageNotFoundError:
    pytest.skip("no agentdojo here: `make packs`", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that it imports
Call = tuple[str, JsonObject]


def played(conversation: Conversation, calls: Sequence[Call], text: str) -> tuple[Grade, list[str]]:
    """A policy that makes one call after the other, and then says a text: the grade, and what the tools returned."""
    returned: list[str] = []
    for name, arguments in calls:
        function = {"name": name, "arguments": json.dumps(arguments)}
        (result,) = conversation.reply({"content": None, "tool_calls": [{"id": "c", "function": function}]})
        returned.append(str(result["content"]))
    assert not conversation.reply({"content": text})
    return conversation.grade(), returned


def solution(task: JsonObject, kind: str) -> tuple[list[Call], str]:
    """The package's own."""
    suites: Any = import_module("agentdojo.task_suite.load_suites").get_suites("v1.2.2")
    part = suites[task["part"]]
    own = getattr(part, f"{kind}s")[task[kind]]
    world = part.load_and_inject_default_environment({})
    calls = own.ground_truth(own.init_environment(world) if kind == "user_task" else world)
    return [(call.function, dict(call.args)) for call in calls], own.GROUND_TRUTH_OUTPUT


def of(suite: str) -> list[tuple[JsonObject, Conversation]]:
    tasks = suite_tasks(suite).tasks
    return [((graded.task.expect.further or {})["agentdojo"], graded.begin()) for graded in tasks]


def test_suites_are_listed_with_their_tasks() -> None:
    assert [len(suite_tasks(name).tasks) for name in ("agentdojo_utility", "agentdojo_attacks")] == [37, 111]
    assert SUITES["agentdojo_attacks"].task_type == "safety.agentdojo"
    assert suite_tasks("agentdojo_attacks").digest == suite_tasks("agentdojo_attacks").digest


def test_solution_of_the_package_does_the_users_task() -> None:
    grades = {
        f"{task['part']} {task['user_task']}": played(conversation, *solution(task, "user_task"))[0].score
        for task, conversation in of("agentdojo_utility")
    }
    assert [name for name, score in grades.items() if score < 1] == []


def test_policy_that_does_the_users_task_meets_the_order_and_resists() -> None:
    runs = [played(conversation, *solution(task, "user_task")) for task, conversation in of("agentdojo_attacks")]
    assert all(any("<INFORMATION>" in text for text in returned) for _, returned in runs)
    assert {grade.score for grade, _ in runs} == {1}


def test_policy_that_carries_the_order_out_is_wrong() -> None:
    runs = [played(conversation, *solution(task, "injection_task")) for task, conversation in of("agentdojo_attacks")]
    assert {grade.score for grade, _ in runs} == {0}


def test_policy_that_does_nothing_solves_nothing_and_obeys_nothing() -> None:
    shares: list[float] = []
    for suite in ("agentdojo_utility", "agentdojo_attacks"):
        grades = [played(conversation, [], "I cannot help.")[0].score for _, conversation in of(suite)]
        shares.append(sum(grades) / len(grades))
    assert shares == [pytest.approx(5 / 37), 1]  # five of the package's own checks look at nothing that is to be done


@pytest.mark.parametrize(
    "function",
    [
        {"name": "no_such_tool", "arguments": "{}"},
        {"name": "send_money", "arguments": "{"},
        {"name": "send_money", "arguments": '{"amount": "much"}'},
        {"name": "get_iban", "arguments": "[]"},
        {"name": "", "arguments": ""},
    ],
)
def test_wrong_call_is_answered_and_counted(function: JsonObject) -> None:
    _, conversation = of("agentdojo_utility")[0]
    (result,) = conversation.reply({"content": None, "tool_calls": [{"id": "c", "function": function}]})
    assert result["content"]
    grade = conversation.grade()
    assert (grade.score, grade.calls, grade.valid_calls) == (0, 1, 0)


@pytest.mark.parametrize("expected", [{}, {"part": "bank", "user_task": "user_task_0"}, {"part": "banking"}, 3])
def test_task_that_the_package_does_not_have_is_refused(expected: object) -> None:
    with pytest.raises(Rejected):
        build_grader(Expected(further={"agentdojo": expected}))
