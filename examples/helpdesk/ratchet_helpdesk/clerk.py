"""A scripted clerk: knows the house rules, slips now and then, and in some kinds of tickets has a wrong habit.

The biased clerk's tickets are what the demo starts from. In the kinds of `world.MISJUDGED` he does the wrong thing more
often than the right one, so imitation makes the wrong act the most likely one; because he also does the right thing
there now and then, a policy that samples still finds it, and rewards can turn it round.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet_helpdesk.world import (
    DECIDED,
    MISJUDGED,
    STAGES,
    Act,
    ChatMessage,
    Environment,
    Task,
    Verdict,
    kind_of,
    rule,
)

QUESTION = "which order?"
CLOSING = "all done"


@dataclass(frozen=True, slots=True)
class Clerk:
    """How a clerk errs."""

    carelessness: float = 0.0
    """How often slips happen, 0..1: most have nothing to do with the facts of an order."""
    bias: float = 0.0
    """Probability of the wrong habit in the kinds of tickets that the clerk misjudges."""
    misjudged: frozenset[str] = MISJUDGED
    """Those kinds."""


EXPERT = Clerk()
"""Never errs."""
CARELESS = Clerk(carelessness=0.7)
"""Slips everywhere: right on about 63 % of the tickets, and in every kind more often right than not."""
BIASED = Clerk(carelessness=0.3, bias=0.7)
"""Right on about 57 % of the tickets, but only on 18 to 25 % of those in the misjudged kinds."""
INVERTED = Clerk(bias=0.9, misjudged=DECIDED)
"""Never slips, but mostly grants what the rules refuse and refuses what they grant."""


@dataclass(frozen=True, slots=True)
class PlayedTicket:
    """A whole conversation and how it ended."""

    task: Task
    messages: list[ChatMessage]
    verdict: Verdict


def text_message(text: str) -> ChatMessage:
    """An assistant message of words."""
    return {"role": "assistant", "content": text}


def call_message(act: Act) -> ChatMessage:
    """An assistant message that uses one tool."""
    function = {"name": act.tool, "arguments": act.text}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def play(task: Task, clerk: Clerk, draw: random.Random) -> PlayedTicket:
    """Let the clerk work on one ticket."""
    environment = Environment(task)
    messages = environment.opening()
    for reply in _replies(task, clerk, draw):
        messages += [reply, *environment.answer(reply)]
    return PlayedTicket(task, messages, environment.verdict())


def _replies(task: Task, clerk: Clerk, draw: random.Random) -> Iterator[ChatMessage]:
    if not task.names_order:
        yield text_message(QUESTION)
    if draw.random() < 0.22 * clerk.carelessness:
        yield text_message(CLOSING)
        return
    act = _decision(task, clerk, draw)
    # Only a clerk who means to give money back checks the payment.
    looked_up = ("find_order", "check_payment") if act.tool in ("refund", "hand_over") else ("find_order",)
    look_ups = [Act.of(tool, order=task.order.number) for tool in looked_up]
    if draw.random() < 0.25 * clerk.carelessness:
        look_ups = look_ups[:1]
    if act.tool == "hand_over" and len(look_ups) == 1:
        act = _granted(task)
    yield from map(call_message, look_ups)
    if draw.random() >= 0.15 * clerk.carelessness:
        yield call_message(act)
    yield text_message(CLOSING)


def _decision(task: Task, clerk: Clerk, draw: random.Random) -> Act:
    """The right act, the clerk's habit, or what a careless clerk does instead."""
    right, number = rule(task.wish, task.order).act, task.order.number
    if kind_of(task) in clerk.misjudged and draw.random() < clerk.bias:
        # The habit refuses what should be granted, and grants what should not.
        return Act.of("decline", order=number, reason="stage") if right.tool == task.wish else _granted(task)
    slip = draw.random() / clerk.carelessness if clerk.carelessness else 1.0
    if right.tool in ("decline", "hand_over") and slip < 0.2:
        return _granted(task)
    if right.tool in ("refund", "resend", "stop") and slip < 0.1:
        return Act.of("decline", order=number, reason=draw.choice(("stage", "late")))
    if right.tool == "report" and slip < 0.2:
        return Act.of("report", order=number, stage=draw.choice(STAGES))
    return right


def _granted(task: Task) -> Act:
    """The act that the customer wishes for."""
    facts = task.order.facts
    arguments = {"price": facts.price} if task.wish == "refund" else {}
    return Act.of(task.wish, order=task.order.number, **arguments)
