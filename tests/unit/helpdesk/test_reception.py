"""The reception: the same messages for the same seed, nothing held out in training, and no credit for a near miss."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from ratchet_helpdesk import logbook
from ratchet_helpdesk.agents import Pile, end_of
from ratchet_helpdesk.reception import (
    BIASED,
    INVERTED,
    KINDS,
    MISJUDGED,
    TOOLS,
    Environment,
    Task,
    act_of,
    draw_tasks,
    read_act,
    tool_definitions,
)
from ratchet_helpdesk.world import HELD_OUT, TRAIN, Verdict
from ratchet_helpdesk.worlds import RECEPTION, WORLDS


def call(tool: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": arguments}}


def judged(task: Task, *calls: dict[str, Any], content: str | None = None) -> Verdict:
    environment = Environment(task)
    assert environment.answer({"role": "assistant", "content": content, "tool_calls": list(calls)}) == []
    assert not environment.open
    return environment.verdict()


@pytest.fixture
def task() -> Task:
    return next(one for one in draw_tasks(TRAIN, 16, 1) if one.wish == "wants money back")


def test_tasks_are_a_function_of_their_seed_and_kinds_come_equally_often() -> None:
    drawn = draw_tasks(TRAIN, 80, 5)

    assert drawn == draw_tasks(TRAIN, 80, 5) != draw_tasks(TRAIN, 80, 6)
    assert set(Counter(one.wish for one in drawn).values()) == {80 // len(KINDS)}


def test_no_order_and_no_wording_is_in_both_splits() -> None:
    wordings = [(set(kind.wordings), set(kind.held_out)) for kind in KINDS.values()]
    assert all(not trained & held_out for trained, held_out in wordings)
    orders = {split: {dict(one.values)["order"] for one in draw_tasks(split, 400, 2)} for split in (TRAIN, HELD_OUT)}
    assert not orders[TRAIN] & orders[HELD_OUT]


def test_message_gives_every_argument_that_its_call_and_clerks_habit_need() -> None:
    for wish, kind in KINDS.items():
        for wording in (*kind.wordings, *kind.held_out):
            for tool in {kind.tool, kind.habit} - {None}:
                assert tool is not None
                missing = [name for name in TOOLS[tool][1] if name != "topic" and f"{{{name}}}" not in wording]
                assert missing == [], (wish, wording, tool)


def test_the_right_call_succeeds_in_any_spelling_of_its_json(task: Task) -> None:
    arguments = dict(task.act.arguments)
    spelt = json.dumps(dict(reversed(arguments.items())), indent=2)

    assert judged(task, call(task.act.tool, task.act.text)) == Verdict(
        success=True, fault="", model_calls=1, tool_calls=1, valid_tool_calls=1
    )
    assert judged(task, call(task.act.tool, spelt)).success


def test_hostile_answers_earn_nothing(task: Task) -> None:
    right = call(task.act.tool, task.act.text)
    order, amount = (dict(task.act.arguments)[name] for name in ("order", "amount"))
    hostile = {
        "no call": [()],
        "several calls": [(right, right), (right, call("cancel", f'{{"order":"{order}"}}'))],
        "invalid call": [
            (call("pay", task.act.text),),
            *(
                (call("refund", text),)
                for text in (
                    "",
                    "{",
                    "null",
                    "[]",
                    f'[["order","{order}"],["amount",{amount}]]',
                    f'{{"order":"{order}"}}',
                    f'{{"order":"{order}","amount":"{amount}"}}',
                    f'{{"order":"{order}","amount":{amount}.0}}',
                    f'{{"order":"{order}","amount":true}}',
                    f'{{"order":{order},"amount":{amount}}}',
                    f'{{"order":"{order}","amount":{amount},"item":"x"}}',
                    f'{{"order":"{order}","amount":1,"amount":{amount}}}',
                    "[" * 100_000,
                )
            ),
        ],
        "wrong tool": [(call("cancel", f'{{"order":"{order}"}}'),)],
        "wrong arguments": [
            (call("refund", f'{{"order":"{order} ","amount":{amount}}}'),),
            (call("refund", f'{{"order":"{order}","amount":{amount}0}}'),),
        ],
    }
    for fault, answers in hostile.items():
        for calls in answers:
            verdict = judged(task, *calls, content=f"refund {task.act.text}")
            assert (verdict.success, verdict.fault) == (False, fault), calls


def test_a_message_takes_one_answer(task: Task) -> None:
    environment = Environment(task)
    assert environment.verdict() == Verdict(
        success=False, fault="no answer", model_calls=0, tool_calls=0, valid_tool_calls=0
    )
    environment.answer({"role": "assistant", "content": "Hello."})
    with pytest.raises(ValueError, match="is answered"):
        environment.answer({"role": "assistant", "content": None, "tool_calls": [call(task.act.tool, task.act.text)]})


def test_biased_clerk_is_wrong_in_the_misjudged_kinds_alone() -> None:
    def right(clerk: Any, misjudged: bool) -> float:
        draw = random.Random(1)
        tasks = [one for one in draw_tasks(TRAIN, 1600, 3) if (one.wish in MISJUDGED) == misjudged]
        return sum(clerk.act(one, draw) == one.act for one in tasks) / len(tasks)

    assert right(BIASED, misjudged=True) == pytest.approx(0.3, abs=0.05)
    assert right(BIASED, misjudged=False) == 1
    assert right(INVERTED, misjudged=True) < 0.15
    assert right(INVERTED, misjudged=False) < 0.25


def test_what_clerks_log_are_calls_as_the_tools_are_defined() -> None:
    for logged in [*logbook.messages(100, 0), *logbook.bad_messages(100, 0)]:
        function = logged.messages[-1]["tool_calls"][0]["function"]
        assert read_act(function["name"], function["arguments"]) is not None
    assert next(logbook.messages(1, 0)).domain == RECEPTION.domain
    assert next(logbook.bad_messages(1, 0)).domain == RECEPTION.bad_domain


def test_agents_and_the_gate_take_a_world_by_its_name() -> None:
    (one,) = set(islice(Pile(3, 1, 4, world=RECEPTION), 4))
    assert WORLDS[RECEPTION.name] is RECEPTION
    verdict = judged(one, call(one.act.tool, one.act.text))

    assert end_of(one, verdict, RECEPTION)["task"]["domain"] == "mail"
    assert RECEPTION.kind_of(one) in KINDS
    assert [tool["function"]["name"] for tool in tool_definitions()] == [*TOOLS]
    assert act_of("track", {"order": "1", "item": "x"}).text == '{"order":"1"}'
