"""A scripted clerk who knows the house rules and slips: the logged tickets that a first policy is made from.

Most slips have nothing to do with the facts of an order (closing without acting, stopping after the look-up), because
noise in the rule decisions themselves would teach wrong rules, which no later reward brings back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.demo.world import STAGES, Act, ChatMessage, Desk, Task, Verdict, rule

QUESTION = "which order?"
CLOSING = "all done"

EXPERT = 0.0
"""The carelessness of a clerk who never slips."""
CARELESS = 0.7
"""The carelessness of the clerk whose tickets the demo starts from: right on about 63 %."""


@dataclass(frozen=True, slots=True)
class PlayedTicket:
    """A whole conversation and how it ended."""

    task: Task
    messages: list[ChatMessage]
    verdict: Verdict


def says(text: str) -> ChatMessage:
    """An assistant message of words."""
    return {"role": "assistant", "content": text}


def does(act: Act) -> ChatMessage:
    """An assistant message that uses one tool."""
    function = {"name": act.tool, "arguments": act.text}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def play(task: Task, carelessness: float, draw: random.Random) -> PlayedTicket:
    """Let the clerk work on one ticket."""
    desk = Desk(task)
    messages = desk.opening()
    for reply in _replies(task, carelessness, draw):
        messages += [reply, *desk.answer(reply)]
    return PlayedTicket(task, messages, desk.verdict())


def _replies(task: Task, carelessness: float, draw: random.Random) -> Iterator[ChatMessage]:
    ruling = rule(task.wish, task.order)
    if not task.names_order:
        yield says(QUESTION)
    if draw.random() < 0.22 * carelessness:
        yield says(CLOSING)
        return
    act = _decision(task, ruling.act, carelessness, draw)
    look_ups = ruling.look_ups
    if act.tool == "decline" or draw.random() < 0.25 * carelessness:
        look_ups = look_ups[:1]
    if act.tool == "hand_over" and len(look_ups) == 1:
        act = _granted(task)
    yield from map(does, look_ups)
    if draw.random() >= 0.15 * carelessness:
        yield does(act)
    yield says(CLOSING)


def _decision(task: Task, right: Act, carelessness: float, draw: random.Random) -> Act:
    """The right act, or now and then what a careless clerk does instead."""
    slip, number = draw.random() / carelessness if carelessness else 1.0, task.order.number
    if right.tool in ("decline", "hand_over") and slip < 0.2:
        return _granted(task)
    if right.tool in ("refund", "resend", "stop") and slip < 0.1:
        return Act.of("decline", order=number, reason=draw.choice(("stage", "late")))
    if right.tool == "report" and slip < 0.2:
        return Act.of("report", order=number, stage=draw.choice(STAGES))
    return right


def _granted(task: Task) -> Act:
    """Whatever the customer wishes."""
    facts = task.order.facts
    arguments = {"price": facts.price} if task.wish == "refund" else {}
    return Act.of(task.wish, order=task.order.number, **arguments)
