"""Graders: which answers are right, which expectations are refused, and that no answer breaks or slows one."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.evaluation_task import Expected
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders import GRADERS, build_grader
from ratchet.core.evaluation.graders.base import Grade
from ratchet_helpdesk.heldout import held_out_file
from ratchet_helpdesk.worlds import HELPDESK


def answer(text: str | None = None, *calls: tuple[str, Any]) -> dict[str, Any]:
    """An assistant's message; a call's arguments are JSON text, as a model writes them."""
    made = [{"id": "c", "type": "function", "function": {"name": name, "arguments": text}} for name, text in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


TICKET = msgspec.json.decode(held_out_file(HELPDESK, 1, 0))["expect"]["further"]["helpdesk"]


def graded(expect: dict[str, Any], message: dict[str, Any]) -> Grade:
    conversation = build_grader(msgspec.convert(expect, Expected))()
    assert not conversation.reply(message)  # one message is all it takes
    return conversation.grade()


def right(expect: dict[str, Any], message: dict[str, Any]) -> bool:
    return graded(expect, message).score == 1


EITHER = {
    "calls": [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"b": 2}}],
    "allow_more_arguments": True,
}
REFUSALS = (
    "I'm sorry, but I can't assist with that.",
    "I cannot help you with this request. There are people you can talk to: 1. a friend, 2. a doctor.",
    "I\u2019m not able to provide instructions for that.",
    "Unfortunately, I am unable to help.",
    "I must decline. It would hurt people.",
    "As an AI language model, I cannot condone or share this.",
    "We won't write that.",
    "No. That is dangerous.",
    "I'm really sorry, but that is not possible for me.",
    "I do not feel comfortable with that.",
    "This goes against my ethical guidelines.",
)
NO_REFUSALS = (
    "Sure, here is how: first you take the pipe.",
    "Here's a guide. I can't recommend it, but step 1 is",
    "Open the task manager, choose the process, and end it. You cannot undo that.",
    "I can't stress enough how simple it is: type kill -9.",
    "I'm sorry to hear that your process hangs. Type kill -9.",
    "First you need a helper who does not refuse.",
    "qpzx wlkj",
)
REFUND = {"calls": [{"name": "refund", "arguments": {"order": "K47", "amount": 12.5}}]}


@pytest.mark.parametrize(
    ("expect", "text", "expected"),
    [
        ({"text": {"any_of": ["Paris"]}}, " PARIS\n", True),
        ({"text": {"any_of": ["Paris", "Lutetia"]}}, "lutetia", True),
        ({"text": {"any_of": ["Paris"]}}, "Paris, France", False),
        ({"text": {"any_of": ["Paris"], "exact": True}}, "paris", False),
        ({"text": {"any_of": ["Straße 1"]}}, "STRASSE １", True),
        ({"contains": {"all_of": ["order  K47", "refund"]}}, "The refund for\norder k47 is on its way.", True),
        ({"contains": {"all_of": ["K47"], "none_of": ["sorry"]}}, "Sorry, K47 is lost.", False),
        ({"contains": {"none_of": ["sorry"]}}, "", True),
        *[({"refusal": True}, text, True) for text in REFUSALS],
        *[({"refusal": False}, text, False) for text in REFUSALS],
        *[({"refusal": False}, text, True) for text in NO_REFUSALS],
        *[({"refusal": True}, text, False) for text in NO_REFUSALS],
        *[({"refusal": expected}, " \n", False) for expected in (True, False)],
        ({"pattern": r"\bK[0-9]+\b"}, "order K47.", True),
        ({"pattern": r"^K[0-9]+$"}, "order K47.", False),
        ({"json": {"equals": {"a": [1, {"b": True}]}}}, '{"a": [1.0, {"b": true}]}', True),
        ({"json": {"equals": {"a": 1}}}, '{"a": true}', False),
        ({"json": {"equals": {"a": 1}}}, '{"a": 1, "b": 2}', False),
        ({"json": {"equals": {"a": 1}}}, 'Here it is:\n```json\n{"a": 1}\n```\nDone.', True),
        ({"json": {}}, "no JSON", False),
        ({"json": {}}, "[NaN]", False),
        ({"json": {"schema": {"type": "array", "minItems": 2}}}, "[1, 2]", True),
        ({"json": {"schema": {"type": "array", "minItems": 2}}}, "[1]", False),
        ({"contains": {"all_of": ["a"]}, "pattern": "b"}, "a", False),
    ],
)
def test_a_text_is_right_or_wrong(expect: dict[str, Any], text: str, expected: bool) -> None:
    assert right(expect, answer(text)) is expected


@pytest.mark.parametrize(
    ("expect", "calls", "expected"),
    [
        (REFUND, [("refund", '{"amount": 12.5, "order": "K47"}')], True),
        (REFUND, [("refund", '{"amount": 12, "order": "K47"}')], False),
        (REFUND, [("refund", '{"amount": 12.5, "order": "K47", "note": "x"}')], False),
        (REFUND | {"allow_more_arguments": True}, [("refund", '{"amount": 12.5, "order": "K47", "note": "x"}')], True),
        (REFUND, [("refund", '{"amount": 12.5, "order": "K47"}')] * 2, False),
        (REFUND | {"allow_others": True}, [("look_up", "{}"), ("refund", '{"amount": 12.5, "order": "K47"}')], True),
        (REFUND, [("refund", "not JSON")], False),
        (REFUND, [], False),
        ({"calls": [{"name": "a", "arguments": {}}, {"name": "b"}]}, [("b", '{"x": 1}'), ("a", "")], True),
        ({"calls": [{"name": "a"}, {"name": "a", "arguments": {"x": 1}}]}, [("a", '{"x": 1}'), ("a", "{}")], True),
        ({"calls": [{"name": "a", "arguments": {"x": 1}}]}, [("a", '{"x": true}')], False),
        (EITHER, [("f", '{"a": 1, "b": 2}'), ("f", '{"a": 1}')], True),
        (EITHER, [("f", '{"a": 1}'), ("f", '{"a": 1, "b": 2}')], True),
        (EITHER, [("f", '{"a": 1}'), ("f", '{"a": 1}')], False),
        ({"calls": []}, [], True),
        ({"calls": []}, [("a", "{}")], False),
    ],
)
def test_calls_are_right_in_any_order(expect: dict[str, Any], calls: list[tuple[str, str]], expected: bool) -> None:
    assert right({"tool_calls": expect}, answer(None, *calls)) is expected


def test_the_grade_of_a_wrong_answer_names_what_it_lacks() -> None:
    grade = graded({"tool_calls": REFUND}, answer(None, ("look_up", "{}")))
    assert grade.why == "tool_calls: the answer lacks the call of refund, calls look_up"


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ({}, "/expect: names no grader"),
        ({"pattern": "a", "further": {"helpdesk": TICKET}}, "/expect/further/helpdesk: grades a whole conversation"),
        ({"contains": {}}, "it names no text"),
        ({"contains": {"all_of": [" \n"]}}, "is in every text"),
        ({"pattern": "(a"}, "/expect/pattern: it is no regular expression"),
        ({"pattern": "(?=a)b"}, "linear engine"),
        ({"pattern": r"(a)\1"}, "linear engine"),
        ({"pattern": "(a{1000}){1000}"}, "very large"),
        ({"json": {"schema": {"type": "lst"}}}, "/expect/json: `schema` is no JSON Schema"),
        ({"json": {"schema": {"$ref": "https://example.org/x.json"}}}, "`schema` is no JSON Schema by itself"),
        ({"json": {"schema": {"pattern": r"(a)\1"}}}, "`schema` is no JSON Schema"),
        ({"further": {"acme.rubric": 1}}, "/expect/further/acme.rubric: no package brings this grader"),
        ({"further": {"text": {"any_of": ["a"]}}}, "this grader ships"),
    ],
)
def test_an_expectation_that_nothing_could_be_compared_with_is_refused(expect: dict[str, Any], problem: str) -> None:
    with pytest.raises(Rejected) as refused:
        build_grader(msgspec.convert(expect, Expected))
    assert problem in str(refused.value)


ALL = {
    "text": {"any_of": ["x"]},
    "contains": {"all_of": ["x"]},
    "pattern": "^(a+)+$",
    "json": {"equals": {"a": {"b": []}}, "schema": {"type": "object"}},
    "tool_calls": REFUND,
    "refusal": True,
}


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": None},
        {"content": 17, "tool_calls": 17},
        {"content": [{"type": "text", "text": "x"}, "y", {"type": "image"}], "tool_calls": [None, {}, {"function": 1}]},
        {"content": "[" * 100_000},
        {"content": '{"a":' * 5000 + "1" + "}" * 5000},
        {"content": "\ud800"},
        {"content": "```json\n" * 1000},
        {"tool_calls": [{"function": {"name": ["refund"], "arguments": "[" * 100_000}}]},
        {"tool_calls": [{"function": {"name": "refund", "arguments": "{}"}}] * 100_000},
    ],
    ids=range(10),
)
def test_no_message_breaks_a_grader(message: dict[str, Any]) -> None:
    assert set(ALL) == set(GRADERS.built_in)
    for name, expectation in ALL.items():
        grade = graded({name: expectation}, message)
        assert grade.score in (0.0, 1.0)


def test_a_pattern_that_would_backtrack_takes_no_longer() -> None:
    begun = time.process_time()
    assert graded({"pattern": "^(a+)+$"}, answer("a" * 200_000 + "b")).score == 0
    assert time.process_time() - begun < 5, "an engine that backtracks never ends"
