"""Rows of a snapshot as records of TRL's dataset formats, and the split that each belongs to.

TRL's names: `messages` (conversational language modelling), `prompt_completion`, `preference`, `unpaired`
(unpaired preference). `tools` is JSON text, which TRL reads: schemas of different tools have no common Arrow type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import LabelRow, PairRow, Row, TrajectoryRow
from ratchet.core.errors import Rejected

TRAIN, EVAL, TEST = "train", "eval", "test"


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of records for evaluation and test; the rest is for training. Records of one prompt go together."""

    eval_ratio: float = 0.0
    test_ratio: float = 0.0
    seed: int = 42

    @property
    def names(self) -> Sequence[str]:
        """The splits that there are."""
        return [TRAIN, *([EVAL] if self.eval_ratio else []), *([TEST] if self.test_ratio else [])]

    def of(self, prompt: object) -> str:
        """The split of a prompt: it follows from seed and prompt alone, whatever else is in the snapshot.

        So a larger snapshot leaves every prompt where it was, and the sizes are only about those of the ratios.
        """
        text = f"{self.seed}:".encode() + msgspec.json.encode(prompt, order="sorted")
        place = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
        if place < self.eval_ratio:
            return EVAL
        return TEST if place < self.eval_ratio + self.test_ratio else TRAIN


def trl_records(row: Row, form: str) -> Iterator[tuple[object, JsonObject]]:
    """(prompt, record) for each part of a row that holds an answer. Raises `Rejected` for a form that does not fit."""
    made = FORMS[form].get(type(row))
    if made is None:
        fitting = ", ".join(name for name, makers in FORMS.items() if type(row) in makers)
        raise Rejected(f"the rows of this snapshot cannot be written as {form}; they can be as {fitting}")
    yield from made(row)


def _messages(row: TrajectoryRow) -> Iterator[tuple[object, JsonObject]]:
    for messages, _ in _parts(row):
        yield _prompt(messages), _with_tools({"messages": messages}, row.tools)


def _prompt_completion(row: TrajectoryRow) -> Iterator[tuple[object, JsonObject]]:
    """A record for each answer: what came before it, and the answer."""
    for messages, learn_from in _parts(row):
        for place, message in enumerate(messages):
            if place >= max(1, learn_from) and message.get("role") == "assistant":
                record = {"prompt": messages[:place], "completion": [message]}
                yield _prompt(messages), _with_tools(record, row.tools)


def _preference(row: PairRow) -> Iterator[tuple[object, JsonObject]]:
    record = {"prompt": row.prompt, "chosen": row.chosen, "rejected": row.rejected}
    yield row.prompt, _with_tools(record, row.tools)


def _unpaired(row: LabelRow) -> Iterator[tuple[object, JsonObject]]:
    record = {"prompt": row.prompt, "completion": row.completion, "label": row.label}
    yield row.prompt, _with_tools(record, row.tools)


def _parts(row: TrajectoryRow) -> Iterator[tuple[list[JsonObject], int]]:
    """The parts of a conversation in which something is answered."""
    parts = [*((part.messages, part.learn_from) for part in row.earlier), (row.messages, row.learn_from)]
    for messages, learn_from in parts:
        if any(message.get("role") == "assistant" for message in messages[learn_from:]):
            yield messages, learn_from


def _prompt(messages: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """What a conversation begins with, before the first answer."""
    first = next(place for place, message in enumerate(messages) if message.get("role") == "assistant")
    return messages[:first]


def _with_tools(record: JsonObject, tools: Sequence[JsonObject]) -> JsonObject:
    return record | ({"tools": msgspec.json.encode(tools).decode()} if tools else {})


FORMS: Mapping[str, Mapping[type[Row], Callable[..., Iterator[tuple[object, JsonObject]]]]] = {
    "messages": {TrajectoryRow: _messages},
    "prompt_completion": {TrajectoryRow: _prompt_completion},
    "preference": {PairRow: _preference},
    "unpaired": {LabelRow: _unpaired},
}
"""Name of a format -> the kinds of rows that it can be made of (`Callable[..., ...]`: each takes its own)."""
