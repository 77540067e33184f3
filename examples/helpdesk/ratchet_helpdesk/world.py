"""The help-desk world: orders, tickets, house rules, and an environment that judges a ticket by the state it leaves.

A ticket is one customer with one wish about one order. The agent sees chat messages and uses tools; what counts is only
what is on record when the ticket closes: exactly the act that the rules ask for, after the look-ups that they ask for.
No answer's wording is ever read. Everything here is a pure function of its seeds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ChatMessage = dict[str, Any]
"""A chat message in OpenAI's form; `Any` because its members are the API's."""

STAGES = ("packing", "shipped", "delivered", "lost")
DAYS = (5, 11, 21, 40)
PRICES = (15, 25, 35, 50, 65, 80)
PLANS = ("basic", "plus")
RETURN_DAYS = 14
"""What was delivered longer ago is too late to give back."""
WISHES = ("refund", "resend", "stop", "report")
TRAIN, HELD_OUT = "train", "heldout"
MAX_CALLS = 6
"""Model calls until a ticket is closed for the agent."""

MAX_TOKENS = 24
"""Longest answer; the longest right one has 11 tokens."""

INSTRUCTIONS = "Help desk. Keep to the house rules."
"""The system prompt. It does not spell out the rules: they are learnt from logged tickets and from rewards."""

TOOLS: Mapping[str, Mapping[str, str]] = {
    "find_order": {"order": "string"},
    "check_payment": {"order": "string"},
    "refund": {"order": "string", "price": "integer"},
    "resend": {"order": "string"},
    "stop": {"order": "string"},
    "decline": {"order": "string", "reason": "string"},
    "hand_over": {"order": "string"},
    "report": {"order": "string", "stage": "string"},
}
"""Argument types of every tool, by name."""

LOOK_UPS = ("find_order", "check_payment")
"""Tools that change nothing."""

_TYPES = {"string": str, "integer": int}
_SERIES = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_HELD_OUT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Facts:
    """What `find_order` shows of an order, and what the split into train and held-out goes by."""

    stage: str
    days: int
    price: int
    plan: str

    @property
    def held_out(self) -> bool:
        """One combination in five is never trained on, nor is any order that has it."""
        return random.Random(f"split {self}").random() < _HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class Order:
    """A row of the order book. Only `check_payment` shows whether it is suspicious."""

    number: str
    facts: Facts
    suspicious: bool


@dataclass(frozen=True, slots=True)
class Act:
    """One tool used with one set of arguments."""

    tool: str
    arguments: tuple[tuple[str, str | int], ...]

    @classmethod
    def of(cls, tool: str, **arguments: str | int) -> Act:
        """The act with its arguments in the tool's own order."""
        return cls(tool, tuple((name, arguments[name]) for name in TOOLS[tool]))

    @property
    def text(self) -> str:
        """The arguments as a model writes them."""
        return json.dumps(dict(self.arguments), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Task:
    """One ticket: a wish about an order, and whether the opening says which order."""

    task_id: str
    wish: str
    order: Order
    opening: str
    names_order: bool


@dataclass(frozen=True, slots=True)
class Ruling:
    """The only end that the rules allow: these look-ups, then this act."""

    look_ups: tuple[Act, ...]
    act: Act


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a ticket ended. `fault` names the first thing that was wrong, and is empty on success."""

    success: bool
    fault: str
    model_calls: int
    tool_calls: int
    valid_tool_calls: int


def rule(wish: str, order: Order) -> Ruling:
    """What the house rules ask for."""
    find, facts = Act.of("find_order", order=order.number), order.facts
    if wish == "report":
        return Ruling((find,), Act.of("report", order=order.number, stage=facts.stage))
    if wish == "stop" and facts.stage == "packing":
        return Ruling((find,), Act.of("stop", order=order.number))
    if wish == "stop" or facts.stage in ("packing", "shipped"):
        return Ruling((find,), Act.of("decline", order=order.number, reason="stage"))
    if facts.stage == "delivered" and facts.days > RETURN_DAYS:
        return Ruling((find,), Act.of("decline", order=order.number, reason="late"))
    if wish == "resend":
        return Ruling((find,), Act.of("resend", order=order.number))
    check = Act.of("check_payment", order=order.number)
    granted = Act.of("refund", order=order.number, price=facts.price)
    return Ruling((find, check), Act.of("hand_over", order=order.number) if order.suspicious else granted)


def kind_of(task: Task) -> str:
    """The kind of a ticket: what is wished, and what the rules make of it."""
    act = rule(task.wish, task.order).act
    if act.tool == "decline":
        reason = dict(act.arguments)["reason"]
        return f"{task.wish} too late" if reason == "late" else f"{task.wish} at the wrong stage"
    if act.tool == "hand_over":
        return "refund of a suspicious payment"
    return f"{task.wish} as wished"


MISJUDGED = frozenset(
    {
        "refund too late",
        "resend too late",
        "stop at the wrong stage",
        "refund of a suspicious payment",
        "resend as wished",
    }
)
"""The kinds of tickets in which the biased clerk is wrong more often than right."""
DECIDED = MISJUDGED | {
    "refund as wished",
    "refund at the wrong stage",
    "resend at the wrong stage",
    "stop as wished",
}
"""The kinds that ask for a decision: all but the reports."""


@lru_cache(maxsize=1)
def order_book() -> Mapping[str, Order]:
    """Every order there is, by number."""
    draw = random.Random("order book")
    book: dict[str, Order] = {}
    for series in _SERIES:
        for place in range(10, 100):
            stage = draw.choices(STAGES, (0.25, 0.15, 0.4, 0.2))[0]
            facts = Facts(stage, draw.choice(DAYS), draw.choice(PRICES), draw.choice(PLANS))
            book[f"{series}{place}"] = Order(f"{series}{place}", facts, draw.random() < 0.3)
    return book


@lru_cache(maxsize=2)
def orders_of(split: str) -> tuple[Order, ...]:
    """The orders of one split; no order and no combination of facts is in both."""
    if split not in (TRAIN, HELD_OUT):
        raise ValueError(f"no such split: {split}")
    return tuple(order for order in order_book().values() if order.facts.held_out == (split == HELD_OUT))


OPENINGS: Mapping[str, tuple[str, ...]] = {
    "refund": ("give me my money back for order{}", "order{} came broken, refund me", "refund order{} please"),
    "resend": ("order{} never worked, send another", "send me order{} once more", "please resend order{}"),
    "stop": ("stop order{} please", "i changed my mind about order{}", "do not send order{}"),
    "report": ("where is my order{}", "tell me about order{}", "how far is order{}"),
}
GREETINGS = ("hello, ", "hi there, ", "")
NAMING = "it is order #{}"


def draw_tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` tickets of a split. Those at the wrong stage are drawn less often: they would be most of the refusals."""
    draw, orders = random.Random(f"tasks {split} {seed}"), orders_of(split)
    tasks: list[Task] = []
    for place in range(count):
        wish = draw.choices(WISHES, (0.4, 0.2, 0.2, 0.2))[0]
        order, names_order = draw.choice(orders), draw.random() < 0.75
        if dict(rule(wish, order).act.arguments).get("reason") == "stage" and draw.random() < 0.6:
            order = draw.choice(orders)
        words = draw.choice(GREETINGS) + draw.choice(OPENINGS[wish])
        opening = words.format(f" #{order.number}" if names_order else "")
        tasks.append(Task(f"{split}-{seed}-{place}", wish, order, opening, names_order))
    return tasks


def tool_definitions() -> list[dict[str, Any]]:
    """The tools in the form that the OpenAI API takes; `Any` because it is JSON schema."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
                    "required": list(arguments),
                },
            },
        }
        for name, arguments in TOOLS.items()
    ]


class Environment:
    """The environment of one ticket: takes the agent's messages, answers as tools and customer, keeps the record."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.open = True
        self._closed_by_agent = False
        self._named = task.names_order
        self._model_calls = 0
        self._tool_calls = 0
        self._record: list[Act] = []

    def opening(self) -> list[ChatMessage]:
        """The conversation that the agent starts from."""
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": self.task.opening}]

    def answer(self, reply: ChatMessage) -> list[ChatMessage]:
        """What the world says to an assistant message: tool results, the customer, or nothing more."""
        if not self.open:
            raise ValueError(f"ticket {self.task.task_id} is closed")
        self._model_calls += 1
        calls: list[dict[str, Any]] = reply.get("tool_calls") or []
        self._tool_calls += len(calls)
        answers: list[ChatMessage] = []
        for call in calls:
            result = self._use(call["function"]["name"], call["function"]["arguments"])
            content = json.dumps(result, separators=(",", ":"))
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not calls and self._named:
            self.open, self._closed_by_agent = False, True
        elif not calls:
            self._named = True
            answers.append({"role": "user", "content": NAMING.format(self.task.order.number)})
        if self._model_calls >= MAX_CALLS:
            self.open = False
        return answers

    def verdict(self) -> Verdict:
        """Compare the record with the ruling."""
        fault = self._fault()
        return Verdict(not fault, fault, self._model_calls, self._tool_calls, len(self._record))

    def _use(self, tool: str, arguments: str) -> dict[str, str | int]:
        act = read_act(tool, arguments)
        if act is None:
            return {"error": "arguments" if tool in TOOLS else "tool"}
        order = order_book().get(str(dict(act.arguments)["order"]))
        if order is None:
            return {"error": "order"}
        self._record.append(act)
        if tool == "find_order":
            facts = order.facts
            return {"stage": facts.stage, "days": facts.days, "price": facts.price, "plan": facts.plan}
        if tool == "check_payment":
            return {"payment": "suspicious" if order.suspicious else "fine"}
        return {"done": tool}

    def _fault(self) -> str:
        ruling = rule(self.task.wish, self.task.order)
        acts = [act for act in self._record if act.tool not in LOOK_UPS]
        if len(acts) != 1:
            return "several acts" if acts else "no act"
        if acts[0] != ruling.act:
            return "wrong act" if acts[0].tool != ruling.act.tool else "wrong arguments"
        before = self._record[: self._record.index(ruling.act)]
        if not set(ruling.look_ups) <= set(before):
            return "look-up missing"
        return "" if self._closed_by_agent else "left open"


def read_act(tool: str, arguments: str) -> Act | None:
    """The act that a tool call stands for, or None when the tool or its arguments are not as defined."""
    kinds = TOOLS.get(tool)
    if kinds is None:
        return None
    try:
        values = json.loads(arguments)
    except json.JSONDecodeError:
        return None
    if not isinstance(values, dict) or set(values) != set(kinds):  # pyright: ignore[reportUnknownArgumentType] - JSON
        return None
    if any(type(values[name]) is not _TYPES[kind] for name, kind in kinds.items()):  # pyright: ignore[reportUnknownArgumentType] - JSON
        return None
    return Act.of(tool, **values)
