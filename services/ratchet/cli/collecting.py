"""Runs many instructions, made of templates, as workflows: a few at a time, under one spend cap, and resumable.

A run has a name. The id of its workflow with a number follows from both, so that what was started is never started
again: a run that was interrupted sends the same ids, and the service answers with the workflows that have them.
"""

from __future__ import annotations

import itertools
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from ratchet.bus.message import NAMESPACE, decode
from ratchet.cli.waiting import POLL_S, SILENCE_S
from ratchet.core.contract.http.workflows import WorkflowIn, WorkflowOut
from ratchet.core.errors import NotFound, Rejected, Unavailable

ENDED = frozenset({"succeeded", "partial", "failed", "cancelled"})
"""States of a workflow in which nothing goes on."""
AT_ONCE = 4
"""Workflows of a run under way at the same time: each may have five calls under way."""
SHARE = 4.0
"""A workflow may cost this many times its share of the budget: a cap at the mean would cut the longer ones off."""
ROUNDING = 1e-9
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a template file."""

    instruction: str
    """With `{name}` where one of the values of that name goes."""
    values: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, str] = {}
    """Texts that go with each of its workflows; placeholders are filled in there too."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow of a run that has ended, one line of the run's file."""

    number: int
    workflow_id: str
    state: str
    cost_usd: float
    instruction: str


@dataclass(frozen=True, slots=True)
class Run:
    """What a run shall do."""

    name: str
    count: int
    role: str
    budget_usd: float
    each_usd: float
    """Budget of a workflow."""
    templates: Sequence[Template]

    def workflow(self, number: int) -> WorkflowIn:
        """The workflow of that number: the same run has always the same one."""
        drawn = random.Random(f"{self.name}/{number}")
        template = self.templates[number % len(self.templates)]
        values = {name: drawn.choice(options) for name, options in sorted(template.values.items())}
        return WorkflowIn(
            instruction=_filled(template.instruction, values),
            inputs={name: _filled(text, values) for name, text in template.inputs.items()},
            role=self.role,
            budget_usd=self.each_usd,
            workflow_id=str(uuid.uuid5(NAMESPACE, f"collect/{self.name}/{number}")),
        )


@dataclass(frozen=True, slots=True)
class Service:
    """The workflows service, and the clock."""

    start: Callable[[WorkflowIn], WorkflowOut]
    read: Callable[[str], WorkflowOut]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class Collection:
    """How far a run is."""

    run: Run
    ended: dict[int, Collected]
    under_way: dict[int, WorkflowOut] = field(default_factory=dict[int, WorkflowOut])

    @property
    def spent_usd(self) -> float:
        """By workflows that have ended."""
        return sum(one.cost_usd for one in self.ended.values())

    @property
    def has_room(self) -> bool:
        """Whether one more workflow stays under the cap, whatever those under way cost."""
        held = sum(one.budget_usd for one in self.under_way.values())
        return self.run.budget_usd - self.spent_usd - held + ROUNDING >= self.run.each_usd

    @property
    def waiting(self) -> Iterator[int]:
        """Numbers that were not started yet."""
        return (n for n in range(self.run.count) if n not in self.ended and n not in self.under_way)

    @property
    def note(self) -> str:
        """Where it stands, in words."""
        good = sum(one.state == "succeeded" for one in self.ended.values())
        spent = f"${self.spent_usd:.4f} of ${self.run.budget_usd:g}"
        return f"{len(self.ended)} of {self.run.count} have ended, {good} succeeded, {spent}"


def collect(
    collection: Collection, service: Service, keep: Callable[[Collected], None], show: Callable[[Collection], None]
) -> None:
    """Go on until every workflow of the run has ended, or the cap leaves no room for another. `keep` gets each once.

    Raises `Unavailable` when the service stays away, and what it refuses a workflow with.
    """
    heard = service.clock()
    while True:
        try:
            _start_more(collection, service)
            over = [one for one in _read_all(collection, service) if one[1].state in ENDED]
        except Unavailable:
            if service.clock() - heard > SILENCE_S:
                raise
            over = []
        else:
            heard = service.clock()
        for number, workflow in over:
            collection.ended[number] = _ended(number, workflow)
            del collection.under_way[number]
            keep(collection.ended[number])
        show(collection)
        if not collection.under_way and (not collection.has_room or next(collection.waiting, None) is None):
            return
        if not over:
            service.sleep(POLL_S)


def _start_more(collection: Collection, service: Service) -> None:
    while len(collection.under_way) < AT_ONCE and collection.has_room:
        number = next(collection.waiting, None)
        if number is None:
            return
        collection.under_way[number] = service.start(collection.run.workflow(number))


def _read_all(collection: Collection, service: Service) -> list[tuple[int, WorkflowOut]]:
    return [(number, service.read(one.workflow_id)) for number, one in collection.under_way.items()]


def _ended(number: int, workflow: WorkflowOut) -> Collected:
    return Collected(
        number=number,
        workflow_id=workflow.workflow_id,
        state=workflow.state,
        cost_usd=workflow.cost_usd,
        instruction=workflow.instruction,
    )


def read_templates(path: Path) -> tuple[list[Template], str]:
    """The templates of a JSONL file, and a name for a run of them: the file's, with the beginning of its digest.

    Raises `NotFound` and `Rejected`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error
    lines = [(place, line) for place, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not lines:
        raise Rejected(f"{path} has no template")
    return [_template(line, f"line {place} of {path}") for place, line in lines], (
        f"{path.stem}-{sha256(content).hexdigest()[:8]}"
    )


def _template(line: bytes, named: str) -> Template:
    try:
        template = decode(line, Template)
    except msgspec.DecodeError as error:
        raise Rejected(f"{named} is not a template: {error}") from error
    used = set(itertools.chain(*(_PLACEHOLDER.findall(text) for text in _texts(template))))
    missing = sorted(name for name in used if not template.values.get(name))
    if missing:
        raise Rejected(f"{named}: {', '.join(missing)} has no values")
    if unused := sorted({*template.values} - used):
        raise Rejected(f"{named}: nothing uses the values of {', '.join(unused)}")
    return template


def _texts(template: Template) -> list[str]:
    return [template.instruction, *template.inputs.values()]


def _filled(text: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def read_collected(path: Path) -> dict[int, Collected]:
    """What a run's file holds, by number; a last line that was cut off is asked for again."""
    ended: dict[int, Collected] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            one = decode(line, Collected)
        except msgspec.DecodeError:
            continue
        ended[one.number] = one
    return ended
