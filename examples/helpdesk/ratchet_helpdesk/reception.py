"""The reception: customers of a shop write English, and one tool call with the right arguments answers each of them.

The world of `ratchet demo --real`, for a model that reads English before it learns anything here. A message asks for
one thing about one order. It is solved by exactly one call: the tool that the shop's rules name for this kind of
message, with the arguments that the message gives. Held-out messages have orders and wordings that training never sees.
Everything here is a pure function of its seeds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet_helpdesk.world import HELD_OUT, TRAIN, Act, ChatMessage, Verdict

INSTRUCTIONS = "You sort the mail of a shop's customers. Answer each message with one call."
"""The system prompt. It does not say which kind of message gets which call: logs and rewards do."""
MAX_TOKENS = 72
"""Longest answer; the longest right one has about 50 tokens."""

TOOLS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "refund": ("Pay money back.", {"order": "string", "amount": "integer"}),
    "replace": ("Send an item again.", {"order": "string", "item": "string"}),
    "cancel": ("Stop an order.", {"order": "string"}),
    "reschedule": ("Move a delivery.", {"order": "string", "day": "string"}),
    "track": ("Search for a parcel.", {"order": "string"}),
    "escalate": ("Ask a person.", {"order": "string", "topic": "string"}),
}
"""What every tool does, and the types of its arguments."""

ITEMS = ("kettle", "desk lamp", "toaster", "hair dryer", "radio", "coffee grinder", "heater", "vacuum cleaner")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_KINDS_OF_VALUES = {"string": str, "integer": int}


@dataclass(frozen=True, slots=True)
class Kind:
    """What customers may want, in which words, and which call answers it."""

    tool: str
    topic: str | None
    """Of an escalation."""
    habit: str | None
    """The tool that the biased clerk prefers; None where this clerk is right."""
    wordings: Sequence[str]
    held_out: Sequence[str]
    """Wordings that no training message has."""


KINDS: Mapping[str, Kind] = {
    "wants money back": Kind(
        "refund",
        None,
        None,
        (
            "Please refund the ${amount} I paid for order {order}.",
            "I sent order {order} back two weeks ago. When do I get my ${amount}?",
            "The {item} is not what I expected. I want my ${amount} for order {order} back.",
            "I returned order {order}, a {item}, and am still waiting for {amount} dollars.",
            "Order {order} was returned unopened. Kindly pay back the {amount} dollars.",
            "Could you return my {amount} dollars? The {item} of order {order} is on its way back to you.",
        ),
        (
            "The {item} from order {order} does not suit me, so please give me the {amount} dollars back.",
            "You promised to pay back ${amount} for order {order}, and nothing has come.",
        ),
    ),
    "got it broken": Kind(
        "replace",
        None,
        None,
        (
            "The {item} in order {order} arrived broken. I need a new one.",
            "My {item} has a crack in it, order {order}. Please send another.",
            "Order {order}: the {item} does not switch on. Can I have one that works?",
            "One side of the {item} was smashed when I opened order {order}. Send me a new one, please.",
            "There is a part missing from the {item}. The order number is {order}. I would like a complete one.",
            "I ordered a {item} and it is damaged, number {order}. Please exchange it.",
        ),
        (
            "When I unpacked order {order}, the {item} was in two pieces. I still want a whole one.",
            "The {item} I got with order {order} never worked. Please ship a working one.",
        ),
    ),
    "changed their mind": Kind(
        "cancel",
        None,
        None,
        (
            "I do not need order {order} any more. Please stop it.",
            "Can you cancel order {order}? I bought a {item} elsewhere.",
            "I ordered by mistake. Please do not send order {order}.",
            "Order {order} was an accident, take it off the list before it ships.",
            "Please drop order {order}, I no longer want the {item}.",
            "My order {order} can be deleted, I have found another {item}.",
        ),
        (
            "Do not ship order {order}, I have changed my mind about the {item}.",
            "I clicked twice. Order {order} should not have been placed at all.",
        ),
    ),
    "is away": Kind(
        "reschedule",
        None,
        None,
        (
            "I am not at home tomorrow. Can order {order} come on {day}?",
            "Please deliver order {order} on {day} instead.",
            "I would rather get the {item}, order {order}, on {day}.",
            "Could the driver bring order {order} on {day}? I work on the other days.",
            "Move my delivery {order} to {day}, please.",
            "The {item} of order {order} should arrive on {day}, not earlier.",
        ),
        (
            "I am travelling. Is {day} possible for order {order}?",
            "Order {order} is planned for a day when I am out. {day} would suit me.",
        ),
    ),
    "is still waiting": Kind(
        "track",
        None,
        "cancel",
        (
            "Order {order} was due last week and has not come.",
            "Where is my {item}? I ordered it a month ago, number {order}.",
            "I am still waiting for order {order}. Has it been lost?",
            "Your page says order {order} was delivered, but there is no {item} here.",
            "It has been twenty days, and order {order} is not here.",
            "The parcel with the {item}, order {order}, seems to have vanished.",
        ),
        (
            "Any news of order {order}? The {item} should have been here days ago.",
            "My neighbours have not seen a parcel either. Order {order} is overdue.",
        ),
    ),
    "was charged twice": Kind(
        "escalate",
        "billing",
        "refund",
        (
            "You charged my card twice for order {order}, ${amount} each time.",
            "My bank shows two payments of {amount} dollars for order {order}.",
            "I paid ${amount} for order {order}, and then the same sum was taken again.",
            "There are two charges for the {item}, order {order}, {amount} dollars each.",
            "Why was I billed two times for order {order}? It was ${amount} once.",
            "Order {order} appears double on my statement, {amount} dollars and {amount} dollars.",
        ),
        (
            "The {amount} dollars for order {order} left my account on Monday and again on Tuesday.",
            "A second payment of ${amount} was taken for the {item}, order {order}.",
        ),
    ),
    "was in danger": Kind(
        "escalate",
        "safety",
        "replace",
        (
            "The {item} from order {order} started to smoke when I switched it on.",
            "I got an electric shock from the {item}, order {order}.",
            "Order {order}: sparks came out of the {item}.",
            "The cable of the {item} melted. The order number is {order}.",
            "My {item} caught fire last night, order {order}.",
            "There is a burning smell whenever I use the {item} of order {order}.",
        ),
        (
            "The {item} I bought with order {order} became so hot that it burnt my hand.",
            "Flames came out of the {item}. It was order {order}.",
        ),
    ),
    "threatens to sue": Kind(
        "escalate",
        "legal",
        None,
        (
            "If order {order} is not settled by {day}, you will hear from my lawyer.",
            "I will take you to court over order {order}.",
            "My solicitor is looking into order {order} and your conduct.",
            "This is a formal notice about order {order}. Legal action follows on {day}.",
            "I went to a consumer court about the {item}, order {order}.",
            "Answer by {day}, or I sue you over order {order}.",
        ),
        (
            "My lawyer has all papers on order {order} and is ready to file a claim.",
            "I shall go to a judge because of the {item} and order {order}.",
        ),
    ),
}
"""By the name of the kind."""

MISJUDGED = frozenset(name for name, kind in KINDS.items() if kind.habit is not None)
"""The kinds in which the biased clerk is wrong more often than right."""


@dataclass(frozen=True, slots=True)
class Task:
    """One message."""

    task_id: str
    wish: str
    """The kind of the message."""
    opening: str
    act: Act
    """The call that answers it."""
    values: tuple[tuple[str, str | int], ...]
    """What the message may speak of, whether or not it does."""


def draw_tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` messages of a split, kinds in equal shares."""
    if split not in (TRAIN, HELD_OUT):
        raise ValueError(f"no such split: {split}")
    draw = random.Random(f"reception {split} {seed}")
    kinds = [name for _ in range(-(-count // len(KINDS))) for name in KINDS][:count]
    draw.shuffle(kinds)
    tasks: list[Task] = []
    for place, wish in enumerate(kinds):
        kind = KINDS[wish]
        wording = draw.choice(kind.held_out if split == HELD_OUT else kind.wordings)
        values: dict[str, str | int] = {
            "order": _order(split, draw),
            "amount": draw.randrange(12, 400),
            "item": draw.choice(ITEMS),
            "day": draw.choice(DAYS),
            "topic": kind.topic or "",
        }
        tasks.append(
            Task(
                f"reception-{split}-{seed}-{place}",
                wish,
                wording.format(**values),
                act_of(kind.tool, values),
                tuple(values.items()),
            )
        )
    return tasks


def act_of(tool: str, values: Mapping[str, str | int]) -> Act:
    """A call with its arguments in the tool's own order."""
    return Act(tool, tuple((name, values[name]) for name in TOOLS[tool][1]))


def _order(split: str, draw: random.Random) -> str:
    """One order number in five is held out."""
    while True:
        number = draw.randrange(10_000, 100_000)
        if (number % 5 == 0) == (split == HELD_OUT):
            return str(number)


def kind_of(task: Task) -> str:
    """The kind of a message."""
    return task.wish


def tool_definitions() -> list[dict[str, Any]]:
    """The tools in the form that the OpenAI API takes; `Any` because it is JSON schema."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": meaning,
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
                    "required": list(arguments),
                },
            },
        }
        for name, (meaning, arguments) in TOOLS.items()
    ]


class Environment:
    """The environment of one message: whatever the agent answers first is its answer."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.open = True
        self._fault = "no answer"
        self._calls = self._valid = 0

    def opening(self) -> list[ChatMessage]:
        """The conversation that the agent starts from."""
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": self.task.opening}]

    def answer(self, reply: ChatMessage) -> list[ChatMessage]:
        """Judge the answer; the world has nothing more to say."""
        if not self.open:
            raise ValueError(f"message {self.task.task_id} is answered")
        self.open = False
        calls: list[dict[str, Any]] = reply.get("tool_calls") or []
        acts = [read_act(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        self._calls, self._valid = len(acts), sum(act is not None for act in acts)
        self._fault = self._judged(acts)
        return []

    def verdict(self) -> Verdict:
        """How the message was answered."""
        return Verdict(not self._fault, self._fault, 0 if self.open else 1, self._calls, self._valid)

    def _judged(self, acts: Sequence[Act | None]) -> str:
        if len(acts) != 1:
            return "several calls" if acts else "no call"
        (act,) = acts
        if act is None:
            return "invalid call"
        if act.tool != self.task.act.tool:
            return "wrong tool"
        return "" if act == self.task.act else "wrong arguments"


def read_act(tool: str, arguments: str) -> Act | None:
    """The act that a call stands for; None when the tool or its arguments are not exactly as defined.

    A name that stands twice, and `true` or `12.0` for an integer, are not as defined.
    """
    if tool not in TOOLS:
        return None
    kinds = TOOLS[tool][1]
    try:
        pairs: Any = json.loads(arguments, object_pairs_hook=_Pairs)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(pairs, _Pairs) or sorted(name for name, _ in pairs) != sorted(kinds):
        return None
    values = dict(pairs)
    if any(type(values[name]) is not _KINDS_OF_VALUES[kind] for name, kind in kinds.items()):
        return None
    return act_of(tool, values)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object as they are written; `Any`: whatever JSON holds."""


@dataclass(frozen=True, slots=True)
class Clerk:
    """Answers messages as a script, and errs."""

    bias: float = 0.0
    """Probability of the habit in the kinds that the clerk misjudges."""
    swaps: float = 0.0
    """Probability of another tool in the kinds that the clerk does not misjudge."""

    def act(self, task: Task, draw: random.Random) -> Act:
        """The call that this clerk makes."""
        habit = KINDS[task.wish].habit
        if habit is not None:
            return act_of(habit, dict(task.values)) if draw.random() < self.bias else task.act
        if draw.random() < self.swaps:
            other = draw.choice([tool for tool in TOOLS if tool not in (task.act.tool, "escalate")])
            return act_of(other, dict(task.values))
        return task.act


BIASED = Clerk(bias=0.7)
"""Right on 74 % of the messages, but only on 30 % of those in the misjudged kinds."""
INVERTED = Clerk(bias=0.9, swaps=0.8)
"""Calls tools well and answers most messages wrongly."""


def chats(clerk: Clerk, name: str, count: int, seed: int) -> Iterator[tuple[str, list[ChatMessage]]]:
    """What a clerk logged: the id of each task, and its messages."""
    draw = random.Random(f"reception {name} {seed}")
    for task in draw_tasks(TRAIN, count, seed):
        act = clerk.act(task, draw)
        function = {"name": act.tool, "arguments": act.text}
        call = {"id": "call_0", "type": "function", "function": function}
        messages = Environment(task).opening()
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        yield f"{name}-{task.task_id}", messages
