"""Strict JSON, made here: one object with the keys that are asked for, each of the type that is asked for.

Which type a key has is drawn, so that its name does not say it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.local.demo.plan import Supervised
from tools.learning.worlds.base import Outcome
from tools.learning.worlds.bfcl_answers import read_arguments
from tools.learning.worlds.procedural import Procedural, Question, in_any_order
from tools.learning.worlds.single_answers import SingleAnswer, shown_text

NAMES = (
    "city",
    "colour",
    "owner",
    "size",
    "level",
    "room",
    "batch",
    "ticket",
    "dish",
    "stage",
    "route",
    "tool",
    "part",
    "class",
    "team",
    "rank",
    "code",
    "label",
    "shelf",
    "pump",
    "crate",
    "berth",
    "signal",
    "ledger",
    "parcel",
    "meter",
    "valve",
    "court",
    "guest",
    "season",
    "branch",
)
THINGS = (
    "delivery",
    "booking",
    "repair",
    "harvest",
    "ferry",
    "museum",
    "shift",
    "rental",
)
WORDS = (
    "oak",
    "amber",
    "north",
    "linen",
    "copper",
    "harbour",
    "quick",
    "seven",
    "pearl",
    "slate",
)
FEWEST, MOST = 2, 4
"""Keys of an object."""
PARSES, PER_KEYS = 0.3, 0.7
"""Of the reward: what an object is worth, and what all its keys are."""


@dataclass(frozen=True, slots=True)
class Type:
    """Of a value, as the question names it."""

    asked: str
    fits: Callable[[Any], bool]
    drawn: Callable[[random.Random], Any]
    """A value of it."""


def _words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


TYPES = (
    Type("string", lambda value: isinstance(value, str), lambda draw: draw.choice(WORDS)),
    Type("integer", lambda value: type(value) is int, lambda draw: draw.randint(1, 90)),
    Type("decimal number", lambda value: isinstance(value, float), lambda draw: draw.randint(1, 90) + 0.5),
    Type("true or false", lambda value: isinstance(value, bool), lambda draw: draw.random() < 0.5),
    Type("list of strings", _words, lambda draw: draw.sample(WORDS, draw.randint(1, 2))),
)


def questions() -> Iterator[Question]:
    """Without end, always the same."""
    draw = random.Random("typed json")
    while True:
        keys = {name: draw.choice(TYPES) for name in draw.sample(NAMES, draw.randint(FEWEST, MOST))}
        thing = draw.choice(THINGS)
        answer = json.dumps({name: kind.drawn(draw) for name, kind in keys.items()})
        yield _question(thing, keys, answer)


def _question(thing: str, keys: Mapping[str, Type], answer: str) -> Question:
    asked = ", ".join(f"{name} ({kind.asked})" for name, kind in keys.items())
    text = f"Describe a {thing} as one line of JSON, with these keys and no others: {asked}. Invent the values."
    messages: list[JsonObject] = [{"role": "user", "content": text}]

    def judge(content: str, calls: Sequence[tuple[str, str]]) -> Outcome:
        reward = 0.0 if calls else worth(content, keys)
        return Outcome(reward == 1, len(calls), graded=reward)

    task = SingleAnswer(f"json: {text}", "typed json", messages, [], judge)
    return Question(in_any_order(text), task, shown_text(task, answer))


def worth(content: str, keys: Mapping[str, Type]) -> float:
    """1 for an object with these keys and types and nothing beside it; less for one where some are wrong or more."""
    given = read_arguments(content)
    if given is None:
        return 0.0
    right = sum(name in given and kind.fits(given[name]) for name, kind in keys.items())
    return PARSES + PER_KEYS * right / len({*keys, *given}) if right < len(keys) or len(given) > right else 1.0


TYPED_JSON = Procedural(questions, 64, Supervised(examples=128, steps=8, learning_rate=1e-3, batch=16))
