"""The help-desk world is the same every time, judges only what is on record, and keeps unseen what is held out."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, strategies as st

from ratchet.local.demo.plan import DEMO
from ratchet_helpdesk.clerk import (
    BIASED,
    CARELESS,
    CLOSING,
    EXPERT,
    INVERTED,
    QUESTION,
    Clerk,
    call_message,
    play,
    text_message,
)
from ratchet_helpdesk.world import (
    DECIDED,
    HELD_OUT,
    MAX_CALLS,
    MISJUDGED,
    TRAIN,
    Act,
    Environment,
    Facts,
    Order,
    Task,
    draw_tasks,
    kind_of,
    order_book,
    orders_of,
    read_act,
    rule,
    tool_definitions,
)

SPLITS = (TRAIN, HELD_OUT)


def a_task(*, wish: str = "refund", named: bool = True) -> Task:
    """A ticket about a real order of the book."""
    facts = Facts("lost", 5, 25, "basic")
    order = next(o for o in order_book().values() if o.facts == facts and not o.suspicious)
    return Task("t", wish, order, "please help" + (f" #{order.number}" if named else ""), named)


def use(tool: str, **arguments: str | int) -> dict[str, object]:
    return call_message(Act.of(tool, **arguments))


def close_with(task: Task, *replies: dict[str, object]) -> str:
    """The fault after these replies and the closing words."""
    environment = Environment(task)
    for reply in (*replies, text_message(CLOSING)):
        environment.answer(reply)
    return environment.verdict().fault


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_draws_the_same_tickets_and_another_seed_others(split: str) -> None:
    assert draw_tasks(split, 50, 3) == draw_tasks(split, 50, 3)
    assert draw_tasks(split, 50, 3) != draw_tasks(split, 50, 4)


def test_the_order_book_never_changes() -> None:
    book = order_book()
    assert len(book) == 2160
    assert book["A10"] == Order("A10", Facts("delivered", 11, 35, "plus"), suspicious=False)


def test_no_order_and_no_combination_of_facts_is_in_both_splits() -> None:
    train, held_out = orders_of(TRAIN), orders_of(HELD_OUT)
    assert len(train) + len(held_out) == len(order_book())
    assert not {order.number for order in train} & {order.number for order in held_out}
    assert not {order.facts for order in train} & {order.facts for order in held_out}
    assert len({order.facts for order in held_out}) >= 20


@pytest.mark.parametrize("split", SPLITS)
def test_tickets_of_a_split_are_about_its_orders_only(split: str) -> None:
    orders = set(orders_of(split))
    assert all(task.order in orders for task in draw_tasks(split, 300, 1))


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="no such split"):
        draw_tasks("test", 1, 0)


@pytest.mark.parametrize("split", SPLITS)
def test_the_rules_always_have_a_right_end(split: str) -> None:
    verdicts = [play(task, EXPERT, random.Random(0)).verdict for task in draw_tasks(split, 1000, 5)]
    assert all(verdict.success for verdict in verdicts)
    assert max(verdict.model_calls for verdict in verdicts) < MAX_CALLS


def test_every_wish_and_every_act_occurs_in_both_splits() -> None:
    for split in SPLITS:
        acts = {rule(task.wish, task.order).act.tool for task in draw_tasks(split, 1000, 5)}
        assert acts == {"refund", "resend", "stop", "report", "decline", "hand_over"}


def right_by_kind(clerk: Clerk) -> dict[str, float]:
    """The clerk's share of solved tickets in each kind."""
    draw, solved = random.Random(0), defaultdict[str, list[bool]](list)
    for task in draw_tasks(TRAIN, 6000, 0):
        solved[kind_of(task)].append(play(task, clerk, draw).verdict.success)
    return {kind: sum(each) / len(each) for kind, each in solved.items()}


def test_a_careless_clerk_is_more_often_right_than_wrong_in_every_kind() -> None:
    assert all(share > 0.5 for share in right_by_kind(CARELESS).values())


def test_biased_clerk_does_right_thing_now_and_then_where_habit_is_wrong() -> None:
    shares = right_by_kind(BIASED)
    assert set(shares) == DECIDED | {"report as wished"}
    assert all(0.15 <= shares[kind] <= 0.3 for kind in MISJUDGED), shares
    assert all(share > 0.7 for kind, share in shares.items() if kind not in MISJUDGED)


def test_clerk_who_reverses_the_rules_writes_valid_calls_mostly_wrong() -> None:
    draw = random.Random(0)
    verdicts = [play(task, INVERTED, draw).verdict for task in draw_tasks(TRAIN, 1000, 0)]
    assert all(verdict.tool_calls == verdict.valid_tool_calls for verdict in verdicts)
    assert sum(verdict.success for verdict in verdicts) < 350


@pytest.mark.parametrize("split", SPLITS)
def test_the_misjudged_kinds_are_two_tickets_in_five(split: str) -> None:
    misjudged = [kind_of(task) in MISJUDGED for task in draw_tasks(split, 3000, 0)]
    assert 0.38 < sum(misjudged) / len(misjudged) < 0.5


def test_every_kind_of_ticket_occurs_in_training_and_in_the_exam() -> None:
    for split, count in ((TRAIN, DEMO.tasks), (HELD_OUT, DEMO.rollouts.heldout_tasks)):
        kinds = {kind_of(task) for task in draw_tasks(split, count, DEMO.rollouts.heldout_seed)}
        assert kinds == DECIDED | {"report as wished"}


@pytest.mark.parametrize(
    ("wish", "facts", "suspicious", "act"),
    [
        ("refund", Facts("lost", 40, 25, "basic"), False, "refund"),
        ("refund", Facts("lost", 40, 25, "basic"), True, "hand_over"),
        ("refund", Facts("delivered", 11, 25, "basic"), False, "refund"),
        ("refund", Facts("delivered", 21, 25, "basic"), False, "decline"),
        ("refund", Facts("delivered", 21, 25, "plus"), False, "decline"),
        ("resend", Facts("delivered", 40, 25, "plus"), False, "decline"),
        ("resend", Facts("shipped", 5, 25, "plus"), False, "decline"),
        ("resend", Facts("lost", 5, 25, "basic"), True, "resend"),
        ("stop", Facts("packing", 5, 25, "basic"), False, "stop"),
        ("stop", Facts("shipped", 5, 25, "basic"), False, "decline"),
        ("report", Facts("shipped", 5, 25, "basic"), False, "report"),
    ],
)
def test_the_rules_of_the_world(wish: str, facts: Facts, suspicious: bool, act: str) -> None:
    assert rule(wish, Order("A10", facts, suspicious)).act.tool == act


def test_a_refusal_names_its_reason() -> None:
    late = rule("refund", Order("A10", Facts("delivered", 40, 25, "plus"), suspicious=False))
    stage = rule("refund", Order("A10", Facts("packing", 5, 25, "plus"), suspicious=False))
    assert (dict(late.act.arguments)["reason"], dict(stage.act.arguments)["reason"]) == ("late", "stage")


def test_only_the_whole_procedure_succeeds() -> None:
    task = a_task()
    number, price = task.order.number, task.order.facts.price
    find, check = use("find_order", order=number), use("check_payment", order=number)
    refund = use("refund", order=number, price=price)
    assert close_with(task, find, check, refund) == ""
    assert close_with(task, find, refund) == "look-up missing"
    assert close_with(task, find, refund, check) == "look-up missing"
    assert close_with(task, find, check) == "no act"
    assert close_with(task, find, check, refund, refund) == "several acts"
    assert close_with(task, find, check, use("refund", order=number, price=price + 10)) == "wrong arguments"
    assert close_with(task, find, check, use("resend", order=number)) == "wrong act"


def test_looking_up_another_order_does_not_count() -> None:
    task = a_task(wish="report")
    other = next(number for number in order_book() if number != task.order.number)
    stage = task.order.facts.stage
    report = use("report", order=task.order.number, stage=stage)
    assert close_with(task, use("find_order", order=other), report) == "look-up missing"


def test_the_customer_names_the_order_when_asked_and_only_once() -> None:
    task = a_task(named=False)
    environment = Environment(task)
    assert environment.answer(text_message(QUESTION)) == [
        {"role": "user", "content": f"it is order #{task.order.number}"}
    ]
    assert environment.open
    assert environment.answer(text_message(QUESTION)) == []
    assert not environment.open


def test_a_ticket_that_never_ends_is_closed_and_failed() -> None:
    task = a_task()
    environment = Environment(task)
    for _ in range(MAX_CALLS):
        environment.answer(use("find_order", order=task.order.number))
    assert not environment.open
    assert not environment.verdict().success
    with pytest.raises(ValueError, match="closed"):
        environment.answer(text_message(CLOSING))


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", "{}", '{"order":7}', '{"order":"A10","x":1}', '{"order":"?"}', '{"order":true}']
)
def test_a_call_that_the_model_spoiled_gets_an_error_and_no_effect(arguments: str) -> None:
    environment = Environment(a_task())
    function = {"name": "find_order", "arguments": arguments}
    (answer,) = environment.answer({"role": "assistant", "tool_calls": [{"id": "c", "function": function}]})
    assert "error" in answer["content"]
    assert (environment.verdict().tool_calls, environment.verdict().valid_tool_calls) == (1, 0)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_of_a_model_breaks_the_environment(tool: str, arguments: str) -> None:
    act = read_act(tool, arguments)
    assert act is None or act.tool in {definition["function"]["name"] for definition in tool_definitions()}


@given(st.sampled_from(["refund", "report", "find_order"]), st.data())
def test_an_act_is_read_as_it_is_written(tool: str, data: st.DataObject) -> None:
    values = {"order": data.draw(st.text()), "price": data.draw(st.integers()), "stage": data.draw(st.text())}
    names = {"refund": ("order", "price"), "report": ("order", "stage"), "find_order": ("order",)}[tool]
    act = Act.of(tool, **{name: values[name] for name in names})
    assert read_act(tool, act.text) == act


def test_true_is_not_a_number() -> None:
    assert read_act("refund", '{"order":"A10","price":true}') is None
