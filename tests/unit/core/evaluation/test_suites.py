"""Suites: what they ask, which policies they tell apart, and which ones of other packages are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import ConfigError, NotFound, Rejected
from ratchet.core.evaluation.graders.base import Conversation
from ratchet.core.evaluation.suites import SUITES, Suite, suite_tasks
from ratchet.core.evaluation.task_files import task_digest
from ratchet.core.plugins import PluginTable
from tests.support.packages import installed, write_package

ACME = """
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
ENTRIES = ("away", "empty", "expects_nothing", "one", "asks", "refusal")
Policy = Callable[[Task], str]


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[PluginTable[Suite]]:
    """The table where a package has been installed."""
    write_package(tmp_path, "acme_suites", ACME, {"ratchet.suites": {name: f"acme_suites:{name}" for name in ENTRIES}})
    with installed(tmp_path):
        yield PluginTable(SUITES.group, SUITES.noun, SUITES.built_in, SUITES.fit)


def share_right(suite: str, policy: Policy) -> float:
    tasks = suite_tasks(suite).tasks
    return sum(_score(graded.begin(), policy(graded.task)) for graded in tasks) / len(tasks)


def _score(conversation: Conversation, text: str) -> float:
    assert not conversation.reply({"role": "assistant", "content": text})
    return conversation.grade().score


@pytest.mark.parametrize("name", [*SUITES.built_in])
def test_suite_asks_a_hundred_different_tasks_the_same_each_time(name: str) -> None:
    tasks = suite_tasks(name)
    assert len({task_digest(graded.task) for graded in tasks.tasks}) == len(tasks.tasks) == 100
    assert suite_tasks(name).digest == tasks.digest
    assert SUITES[name].task_type == f"safety.{name}"


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


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("away", Rejected, "suite away makes no tasks: OSError: no route to huggingface.co"),
        ("empty", Rejected, "suite empty holds 0 tasks"),
        ("expects_nothing", Rejected, "names no grader"),
        ("asks", ConfigError, "does not fit: it is a function"),
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
