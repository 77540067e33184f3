"""Single calls in Python, of the Berkeley Function Calling Leaderboard.

The tasks are files of the package `bfcl-eval` (Apache-2.0), which are read without importing it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.local.demo.plan import Supervised
from tools.learning.worlds.base import Engine, Outcome
from tools.learning.worlds.bfcl_answers import OMITTED, Accepted, is_accepted, read_arguments
from tools.learning.worlds.procedural import CYCLE, PREFIX_TOKENS, SEATS
from tools.learning.worlds.public import Demonstration, NoTasks, PublicTasks
from tools.learning.worlds.single_answers import SingleAnswer, shown_call

FILE = "BFCL_v4_simple_python.json"
LONGEST_TEXT = 650
"""Letters of function and question together: of longer ones a try would take most of its time to be read."""
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""What JSON schema calls BFCL's types."""
ENGINE = Engine(max_tokens=72, seats=SEATS, together=8, prefix_tokens=PREFIX_TOKENS)
IMITATION = Supervised(examples=96, steps=12, learning_rate=1e-3, batch=16)
"""Two passes: a group learns only where some of its tries are right and others wrong."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A task as BFCL has it."""

    task_id: str
    messages: Sequence[JsonObject]
    functions: Sequence[JsonObject]
    truth: tuple[str, Accepted]
    """The call that is right, with the accepted values of its parameters."""

    @property
    def names(self) -> frozenset[str]:
        """Of its functions."""
        return frozenset(str(function["name"]) for function in self.functions)

    @property
    def length(self) -> int:
        """Letters of what has to be read."""
        return len(json.dumps([*self.functions, *self.messages]))

    def task(self) -> SingleAnswer:
        """As policies play it."""
        tools = [tool_of(function) for function in self.functions]
        return SingleAnswer(self.task_id, "simple", self.messages, tools, self.judge)

    def judge(self, content: str, calls: Sequence[tuple[str, str]]) -> Outcome:  # noqa: ARG002 - a `Judge`
        """Judge an answer: the call has to be its only one."""
        read = [(name, read_arguments(arguments)) for name, arguments in calls]
        valid = sum(name in self.names and arguments is not None for name, arguments in read)
        return Outcome(self._is_right(read), len(calls), valid)

    def demonstration(self) -> Demonstration:
        """The right answer: of several accepted values the first."""
        name, accepted = self.truth
        function = next(function for function in self.functions if function["name"] == name)
        return shown_call(self.task(), name, first_accepted(accepted, function["parameters"]["required"]))

    def _is_right(self, calls: Sequence[tuple[str, JsonObject | None]]) -> bool:
        if len(calls) != 1:
            return False
        (name, arguments), (right, accepted) = calls[0], self.truth
        if name != right or arguments is None:
            return False
        function = next(function for function in self.functions if function["name"] == right)
        return is_accepted(arguments, function["parameters"], accepted)


def bfcl(seed: int) -> PublicTasks:
    """The world of a seed. Raises `NoTasks`."""
    training, held_out = halves(entries())
    return PublicTasks(
        seed=seed,
        tasks=[entry.task() for entry in training],
        exam=[entry.task() for entry in held_out],
        shown=[entry.demonstration() for entry in training],
        engine=ENGINE,
        imitation=IMITATION,
        cycle=CYCLE,
    )


@cache
def entries() -> tuple[Entry, ...]:
    """Every task that is short enough. Raises `NoTasks`."""
    folder = data_folder()
    read = read_entries(folder / FILE, folder / "possible_answer" / FILE)
    return tuple(entry for entry in read if entry.length <= LONGEST_TEXT)


def data_folder() -> Path:
    """Where the package keeps its tasks. Raises `NoTasks`."""
    try:
        folder = Path(str(distribution("bfcl-eval").locate_file("bfcl_eval/data")))
    except PackageNotFoundError as error:
        raise NoTasks("BFCL's tasks are in the package bfcl-eval, which is not installed: make tasks") from error
    return folder


def read_entries(questions: Path, answers: Path) -> list[Entry]:
    """The tasks of a file."""
    truths: dict[str, tuple[str, Accepted]] = {}
    for line in _lines(answers):
        (call,) = cast("list[dict[str, Accepted]]", line["ground_truth"])
        truths[line["id"]] = next(iter(call.items()))
    return [Entry(line["id"], line["question"][0], line["function"], truths[line["id"]]) for line in _lines(questions)]


def halves(all_entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Training and held-out half: tasks that share a function's name stay together."""
    training: list[Entry] = []
    held_out: list[Entry] = []
    for together in sorted(_connected(all_entries), key=lambda group: sha256(group[0].task_id.encode()).hexdigest()):
        (held_out if len(held_out) < len(training) else training).extend(together)
    return training, held_out


def tool_of(function: JsonObject) -> JsonObject:
    """A function as the OpenAI API takes it."""
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function["description"],
            "parameters": _schema(function["parameters"]),
        },
    }


def first_accepted(accepted: Accepted, required: Collection[str] = ()) -> JsonObject:
    """Arguments that are right: what may be left out is, unless it is required."""
    return {
        name: _plain(next(value for value in values if value != OMITTED))
        for name, values in accepted.items()
        if OMITTED not in values or name in required
    }


def _plain(value: Any) -> Any:
    """An accepted value; inside objects every member has a list of them."""
    if isinstance(value, dict):
        return first_accepted(cast("Accepted", value))
    return [_plain(element) for element in cast("list[Any]", value)] if isinstance(value, list) else value


def _schema(value: Any) -> Any:
    """BFCL's description of a type as JSON schema."""
    if isinstance(value, list):
        return [_schema(element) for element in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    described = {name: _schema(member) for name, member in cast("JsonObject", value).items()}
    kind = described.get("type")
    return described | ({"type": JSON_TYPES[kind]} if isinstance(kind, str) and kind in JSON_TYPES else {})


def _connected(all_entries: Iterable[Entry]) -> list[list[Entry]]:
    """Tasks in groups, so that no two groups have a function's name in common."""
    group_of: dict[str, list[Entry]] = {}
    for entry in all_entries:
        joined = [entry]
        for group in {id(group_of[name]): group_of[name] for name in entry.names if name in group_of}.values():
            joined = [*group, *joined]
        group_of |= {name: joined for member in joined for name in member.names}
    return list({id(group): group for group in group_of.values()}.values())


def _lines(file: Path) -> list[JsonObject]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
