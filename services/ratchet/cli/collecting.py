"""Runs many instructions, made of templates, as workflows: a few at a time, under one spend cap, and resumable.

A run's file gets the id of each workflow before it is sent, and what became of it. A run that was interrupted sends the
ids that are there again, and the service answers with the workflows that have them: nothing is run twice. The service
knows a workflow for a day: an older one that it does not know is lost, and counts as if it had spent all that it may.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import msgspec

from ratchet.bus.message import decode
from ratchet.cli.waiting import POLL_S, SILENCE_S
from ratchet.core.contract.http.workflows import WorkflowIn, WorkflowOut
from ratchet.core.contract.workflows import ENDED_STATES
from ratchet.core.errors import NotFound, Rejected, Unavailable

BEGUN = "begun"
LOST = "lost"
AT_ONCE = 4
"""Workflows of a run under way at the same time: each may have five calls under way."""
SHARE = 4.0
"""A workflow may cost this many times its share of the budget: a cap at the mean would cut the longer ones off."""
ROUNDING = 1e-9
KEPT_S = 20 * 3600.0
"""For so long a workflow is surely known by its id: the service keeps it for a day, and clocks differ."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a template file."""

    instruction: str
    """With `{name}` where one of the values of that name goes."""
    values: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, str] = {}
    """Texts that go with each of its workflows; placeholders are filled in there too."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow of a run, one line of the run's file when it begins, and one when it has ended."""

    number: int
    workflow_id: str
    state: str
    """`begun`, `lost`, or how it ended."""
    cost_usd: float
    """Of one that is lost: the most that it may have spent."""
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

    def workflow(self, number: int, workflow_id: str | None = None) -> WorkflowIn:
        """The workflow of that number: in the same run it is always the same one, but for its id."""
        drawn = random.Random(f"{self.name}/{number}")
        template = self.templates[number % len(self.templates)]
        values = {name: drawn.choice(options) for name, options in sorted(template.values.items())}
        return WorkflowIn(
            instruction=_filled(template.instruction, values),
            inputs={name: _filled(text, values) for name, text in template.inputs.items()},
            role=self.role,
            budget_usd=self.each_usd,
            workflow_id=workflow_id,
        )


@dataclass(frozen=True, slots=True)
class Service:
    """The workflows service, and the clock."""

    start: Callable[[WorkflowIn], WorkflowOut]
    read: Callable[[str], WorkflowOut]
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    """Seconds since 1970, as ids have them."""


@dataclass(slots=True)
class Collection:
    """How far a run is."""

    run: Run
    ended: dict[int, Collected] = field(default_factory=dict[int, Collected])
    begun: dict[int, str] = field(default_factory=dict[int, str])
    """Ids of workflows that were sent, or were about to be, and of which no end is known."""
    under_way: dict[int, WorkflowOut] = field(default_factory=dict[int, WorkflowOut])

    @property
    def lost(self) -> list[str]:
        """Ids of those whose end is not known any more."""
        return [workflow.workflow_id for workflow in self.ended.values() if workflow.state == LOST]

    @property
    def spent_usd(self) -> float:
        """By workflows that have ended."""
        return sum(workflow.cost_usd for workflow in self.ended.values())

    @property
    def has_room(self) -> bool:
        """Whether one more workflow stays under the cap, whatever those under way cost."""
        held = sum(workflow.budget_usd for workflow in self.under_way.values())
        return self.run.budget_usd - self.spent_usd - held + ROUNDING >= self.run.each_usd

    @property
    def next_number(self) -> int | None:
        """Of the workflow to start next: those first that may be under way already, for they may be spending."""
        waiting = [n for n in range(self.run.count) if n not in self.ended and n not in self.under_way]
        return min(waiting, key=lambda n: (n not in self.begun, n), default=None)

    @property
    def note(self) -> str:
        """Where it stands, in words."""
        good = sum(workflow.state == "succeeded" for workflow in self.ended.values())
        spent = f"${self.spent_usd:.4f} of ${self.run.budget_usd:g}"
        lost = f", lost after a day: {', '.join(self.lost)}" if self.lost else ""
        return f"{len(self.ended)} of {self.run.count} have ended, {good} succeeded{lost}, {spent}"


def collect(
    collection: Collection, service: Service, keep: Callable[[Collected], None], show: Callable[[Collection], None]
) -> None:
    """Go on until every workflow of the run has ended, or the cap leaves no room for another.

    `keep` gets each before it is sent, and once it has ended. Raises `Unavailable` when the service stays away, and
    what it refuses a workflow with.
    """
    heard = service.clock()
    while collection.under_way or (collection.has_room and collection.next_number is not None):
        before = len(collection.ended)
        try:
            _take_ended(collection, service, keep)
            heard = service.clock() if collection.under_way or len(collection.ended) > before else heard
            _start_more(collection, service, keep)
            heard = service.clock()
        except Unavailable:  # away, or busy with as many workflows as it takes
            if service.clock() - heard > SILENCE_S:
                raise
        show(collection)
        if len(collection.ended) == before:
            service.sleep(POLL_S)


def _take_ended(collection: Collection, service: Service, keep: Callable[[Collected], None]) -> None:
    for number, workflow in [*collection.under_way.items()]:
        seen = service.read(workflow.workflow_id)
        if seen.state in ENDED_STATES:
            collection.ended[number] = _collected(number, seen)
            del collection.under_way[number]
            keep(collection.ended[number])


def _start_more(collection: Collection, service: Service, keep: Callable[[Collected], None]) -> None:
    while len(collection.under_way) < AT_ONCE and collection.has_room:
        number = collection.next_number
        if number is None:
            return
        known = collection.begun.get(number)
        workflow_id = collection.begun[number] = known or service.new_id()
        workflow = collection.run.workflow(number, workflow_id)
        begun = Collected(
            number=number, workflow_id=workflow_id, state=BEGUN, cost_usd=0.0, instruction=workflow.instruction
        )
        if known is None:
            keep(begun)
        elif _is_lost(known, service):
            collection.ended[number] = msgspec.structs.replace(begun, state=LOST, cost_usd=collection.run.each_usd)
            keep(collection.ended[number])
            continue
        collection.under_way[number] = service.start(workflow)


def _is_lost(workflow_id: str, service: Service) -> bool:
    """Whether the service may have forgotten a workflow, which would then be run and paid a second time."""
    began = UUID(workflow_id).int >> 80  # a UUIDv7 begins with its milliseconds since 1970
    if service.now() - began / 1000 < KEPT_S:
        return False
    try:
        service.read(workflow_id)
    except NotFound:
        return True
    return False


def _collected(number: int, workflow: WorkflowOut) -> Collected:
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
    used = set(
        itertools.chain(*(_PLACEHOLDER.findall(text) for text in (template.instruction, *template.inputs.values())))
    )
    missing = sorted(name for name in used if not template.values.get(name))
    if missing:
        raise Rejected(f"{named}: {', '.join(missing)} has no values")
    if unused := sorted({*template.values} - used):
        raise Rejected(f"{named}: nothing uses the values of {', '.join(unused)}")
    return template


def _filled(text: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def read_collected(path: Path, run: Run) -> Collection:
    """The run as its file leaves it; a last line that was cut off was not sent."""
    collection = Collection(run)
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            one = decode(line, Collected)
        except msgspec.DecodeError:
            continue
        if one.number >= run.count:
            continue
        if one.state == BEGUN:
            collection.begun[one.number] = one.workflow_id
        else:
            collection.ended[one.number] = one
    return collection
