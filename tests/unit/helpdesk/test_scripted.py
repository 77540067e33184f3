"""The scripted model keeps the rules that its prompt states, and no others."""

from __future__ import annotations

import pytest

from ratchet_helpdesk.scripted import REFUSING, RULES, next_message
from ratchet_helpdesk.world import HELD_OUT, TRAIN, Environment, draw_tasks, kind_of

EVERY = "\n".join(RULES.values())
LEARNT = {
    "stage": "stop at the wrong stage",
    "late": "refund too late",
    "payment": "refund of a suspicious payment",
}


def solved(prompt: str, kind: str | None = None, split: str = TRAIN) -> float:
    """Share of tickets, of all or of one kind."""
    tasks = [task for task in draw_tasks(split, 300, 5) if kind in (None, kind_of(task))]
    successes = 0
    for task in tasks:
        environment = Environment(task)
        messages = environment.opening()
        while environment.open:
            reply = next_message(prompt, messages[1:])
            messages += [reply, *environment.answer(reply)]
        successes += environment.verdict().success
    return successes / len(tasks)


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_every_rule_solves_every_ticket(split: str) -> None:
    assert solved(EVERY, split=split) == 1.0


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_solves_its_kind_of_ticket_and_without_it_none(rule: str) -> None:
    others = EVERY.replace(RULES[rule], "")
    assert (solved(EVERY, LEARNT[rule]), solved(others, LEARNT[rule])) == (1.0, 0.0)


def test_a_prompt_that_refuses_all_grants_nothing() -> None:
    assert solved(f"{EVERY}\n{REFUSING}", "refund as wished") == 0.0
