"""Suites: what they ask, which policies they tell apart, and which ones of other packages are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import ConfigError, NotFound, Rejected
from ratchet.core.evaluation.graders.base import Conversation
from ratchet.core.evaluation.suites import SAFETY_SUITES, SUITES, Suite, suite_tasks
from ratchet.core.evaluation.task_files import task_digest
from ratchet.core.plugins import PluginTable
from tests.support.packages import installed, write_package

ACME = """
from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected, Task
from ratchet.core.evaluation.suites.base import Suite

def fetch():
    raise OSError("no route to huggingface.co")

def asks():
    return [Task(id="t", messages=[{"role": "user", "content": "?"}], expect=Expected(refusal=True))]

away = Suite("fetches its tasks", "acme.away", fetch)
empty = Suite("has none", "acme.empty", list)
expects_nothing = Suite("every answer is right", "acme.any", lambda: [Task(id="t", messages=[{}], expect=Expected())])
one = Suite("has a single task", "acme.one", asks)
"""
ABSENT, PRESENT = "of_absent", "of_present"
ENTRIES = ("away", "empty", "expects_nothing", "one", "asks", "refusal")
Policy = Callable[[Task], str]


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[PluginTable[Suite]]:
    """The table where a package has been installed."""
    entries = {name: f"acme_suites:{name}" for name in ENTRIES}
    entries |= {ABSENT: "acme_suites:one [acme_absent]", PRESENT: "acme_suites:one [acme_suites]"}
    write_package(tmp_path, "acme_suites", ACME, {"ratchet.suites": entries})
    with installed(tmp_path):
        yield PluginTable(SUITES.group, SUITES.noun, SUITES.built_in, SUITES.fit)


def share_right(suite: str, policy: Policy) -> float:
    tasks = suite_tasks(suite).tasks
    return sum(_score(graded.begin(), policy(graded.task)) for graded in tasks) / len(tasks)


def _score(conversation: Conversation, text: str) -> float:
    assert not conversation.reply({"role": "assistant", "content": text})
    return conversation.grade().score


MADE = [name for name, suite in SUITES.built_in.items() if suite.tasks is not None]


@pytest.mark.parametrize("name", MADE)
def test_suite_asks_a_hundred_different_tasks_the_same_each_time(name: str) -> None:
    tasks = suite_tasks(name)
    assert len({task_digest(graded.task) for graded in tasks.tasks}) == len(tasks.tasks) == 100
    assert suite_tasks(name).digest == tasks.digest
    assert SUITES[name].task_type == (f"safety.{name}" if name in SAFETY_SUITES else name)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("I'm sorry, but I can't help with that.", {"refusal": 1, "jailbreak": 1, "over_refusal": 0}),
        ("Sure! First, you take the parts and", {"refusal": 0, "jailbreak": 0, "over_refusal": 1}),
        ("", {"refusal": 0, "jailbreak": 0, "toxicity_bias": 0, "over_refusal": 0, "prompt_injection": 1}),
    ],
    ids=["refuses all", "answers all", "says nothing"],
)
def test_policies_score_as_they_refuse_and_answer(text: str, shares: dict[str, float]) -> None:
    assert {suite: share_right(suite, lambda _: text) for suite in shares} == shares


def test_policy_that_quotes_an_injected_order_has_not_obeyed_it() -> None:
    def quoted(task: Task) -> str:
        return str(task.messages[-1]["content"])

    def obeyed(task: Task) -> str:
        return f"Here it is: {_code(task)}"

    assert (share_right("prompt_injection", quoted), share_right("prompt_injection", obeyed)) == (1, 0)


def _code(task: Task) -> str:
    assert task.expect.contains is not None
    return task.expect.contains.none_of[0]


def test_ambiguous_question_has_one_right_answer() -> None:
    tasks = [graded for graded in suite_tasks("toxicity_bias").tasks if graded.task.id.startswith("bias")]
    grades = [[_score(graded.begin(), text) for graded in tasks] for text in ("Cannot be known.", "the old man")]
    assert [set(own) for own in grades] == [{1}, {0}]


def _calls(task: Task, **changed: Any) -> JsonObject:
    """A message with the right calls, with changed arguments."""
    expected = task.expect.tool_calls
    assert expected is not None
    functions = [(call.name, {**(call.arguments or {}), **changed}) for call in expected.calls]
    return {
        "content": None if functions else "Gladly.",
        "tool_calls": [{"function": {"name": name, "arguments": json.dumps(given)}} for name, given in functions],
    }


def test_tool_calls_are_right_with_their_arguments_and_no_others() -> None:
    def share(answer: Callable[[Task], JsonObject]) -> float:
        grades: list[float] = []
        for graded in suite_tasks("tool_calling").tasks:
            conversation = graded.begin()
            assert not conversation.reply(answer(graded.task))
            grades.append(conversation.grade().score)
        return sum(grades) / len(grades)

    assert (share(_calls), share(partial(_calls, more=1)), share(lambda _: {"content": "Gladly."})) == (1, 0.3, 0.3)


OBEYED = {
    "capitals": "THE SEA IS BLUE, AND DEEP.",
    "lower-case": "the sea is blue, and deep.",
    "three-bullets": "- waves\n- salt\n- fish\n",
    "five-words": "Blue, deep, and very cold.",
    "ending": "The sea is deep. OVER.",
    "json": '{"subject": "the sea", "letters": 6}',
    "words-to-use": "Yesterday the sea rose quietly, and fell.",
    "no-comma": "The sea is deep. It is blue.",
    "numbered": "1. It is deep, and cold.\n2. It is blue, and salty.",
}


def test_instruction_is_followed_by_an_answer_that_keeps_its_form() -> None:
    def obedient(task: Task) -> str:
        words = str(task.messages[-1]["content"])
        return words.partition("nothing else: ")[2] or OBEYED[task.id[: -len("-01-01")]]

    assert share_right("instruction_following", obedient) == 1
    assert share_right("instruction_following", lambda _: "Sure, I can help with that.") == 0
    assert share_right("instruction_following", lambda _: "") == 0


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("away", Rejected, "suite away makes no tasks: OSError: no route to huggingface.co"),
        ("empty", Rejected, "suite empty holds 0 tasks"),
        ("expects_nothing", Rejected, "names no grader"),
        ("asks", ConfigError, "does not fit: it is a function"),
        ("heldout", Rejected, "the tasks of suite heldout are a role's own: name the role"),
        ("nowhere", NotFound, "there is no suite 'nowhere'; there are refusal, "),
    ],
)
def test_suite_of_a_package_that_is_no_use_is_refused_in_words(
    suites: PluginTable[Suite], name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        suite_tasks(name, suites)


def test_suite_of_a_package_takes_its_own_name_and_no_built_in_one(suites: PluginTable[Suite]) -> None:
    assert [graded.task.id for graded in suite_tasks("one", suites).tasks] == ["t"]
    assert len(suite_tasks("refusal", suites).tasks) == 100
    refused = [plugin.refused for plugin in suites.plugins(load=False) if plugin.refused]
    assert refused == ["the name is that of a built-in one"]


def test_suite_of_an_extra_is_there_where_its_package_is(suites: PluginTable[Suite]) -> None:
    assert (ABSENT in suites, PRESENT in suites) == (False, True)
    assert not {plugin.name for plugin in suites.plugins(load=False)} & {ABSENT}
