"""What a search need not ask again: each task as a candidate played it, each answer of the reflector."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.message import Value, decode
from ratchet.core.contract.bundle import Bundle
from ratchet.trainer_worker.training.prompts.base import Played

TRIES, REFLECTIONS = "tries.jsonl", "reflections.jsonl"
"""Files of a checkpoint."""


class KnownTry(Value, frozen=True, kw_only=True):
    """A task as a candidate played it."""

    candidate: str
    task: str
    played: Played


class KnownReflection(Value, frozen=True, kw_only=True):
    """What the reflector has answered to a prompt."""

    prompt: str
    number: int
    """Of the times that the search has asked it."""
    text: str


class KnownAnswers:
    """Asked again, a reflector may answer otherwise: each time that it is asked the same is known by its number."""

    def __init__(self) -> None:
        self.tries: dict[tuple[str, str], Played] = {}
        """By the digests of candidate and task."""
        self._reflections: dict[tuple[str, int], str] = {}
        self._asked = Counter[str]()

    def next_reflection(self, prompt: str) -> tuple[tuple[str, int], str | None]:
        """What names the next answer to a prompt, and the answer where it is known."""
        digest = hashlib.sha256(prompt.encode(errors="replace")).hexdigest()
        key = digest, self._asked[digest]
        self._asked[digest] += 1
        return key, self._reflections.get(key)

    def reflected(self, key: tuple[str, int], text: str) -> None:
        """The reflector has answered."""
        self._reflections[key] = text

    def write(self, directory: Path) -> None:
        """Keep all of it in a checkpoint."""
        tries = [KnownTry(candidate=one, task=task, played=played) for (one, task), played in self.tries.items()]
        answers = [KnownReflection(prompt=one, number=n, text=text) for (one, n), text in self._reflections.items()]
        (directory / TRIES).write_bytes(json_lines(tries))
        (directory / REFLECTIONS).write_bytes(json_lines(answers))

    def read(self, directory: Path) -> None:
        """Take in what a checkpoint of an earlier attempt holds."""
        for line in (directory / TRIES).read_bytes().splitlines():
            known = decode(line, KnownTry)
            self.tries[known.candidate, known.task] = known.played
        for line in (directory / REFLECTIONS).read_bytes().splitlines():
            reflected = decode(line, KnownReflection)
            self._reflections[reflected.prompt, reflected.number] = reflected.text


def bundle_digest(bundle: Bundle) -> str:
    """Names a candidate."""
    return hashlib.sha256(msgspec.json.encode(bundle)).hexdigest()


def json_lines(values: Sequence[Any]) -> bytes:
    """A line of JSON for each struct. `Any`: msgspec encodes any kind."""
    return b"".join(msgspec.json.encode(value) + b"\n" for value in values)
