"""Planners from the object store, and plans of a language model where a planner is not confident."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.workflows import MOST_SUB_TASKS, TASK_TYPES, Plan, PlannerRef
from ratchet.core.errors import DigestMismatch, Rejected
from ratchet.core.planning.base import Planner, Version0
from ratchet.core.planning.files import load_planner
from ratchet.core.planning.plans import checked_plan

CONFIDENT = 0.5
"""Least confidence of a planner's model, the geometric mean of its choices' probabilities, whose plan is run where a
language model could plan as well."""
KEPT = 8
"""Planners in memory: stable and canary of a few roles; each has some megabytes."""
SYSTEM = f"""You split a task into sub-tasks for workers who see only their own sub-task and the outputs of those that
it depends on. Answer with JSON alone. `task_type` is one of: {", ".join(TASK_TYPES)}. `depends_on` has the indices,
from 0, of earlier sub-tasks whose outputs are needed. `complexity` is between 0 and 1. Use as few sub-tasks as do it,
at most {MOST_SUB_TASKS}; one is enough for what one worker can do."""
_SUB_TASK: JsonObject = {
    "type": "object",
    "properties": {
        "task_type": {"type": "string", "enum": [*TASK_TYPES]},
        "instruction": {"type": "string"},
        "depends_on": {"type": "array", "items": {"type": "integer"}},
        "complexity": {"type": "number"},
    },
    "required": ["task_type", "instruction", "depends_on", "complexity"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: JsonObject = {
    "type": "json_schema",
    "json_schema": {
        "name": "plan",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"sub_tasks": {"type": "array", "items": _SUB_TASK}},
            "required": ["sub_tasks"],
            "additionalProperties": False,
        },
    },
}


class Planners:
    """The planners of policies, by the digest of their files."""

    def __init__(self, read: Callable[[str, str], bytes]) -> None:
        """`read`: the blob of a URI, checked against its sha256; it may block."""
        self._read = read
        self._known: OrderedDict[str, Planner] = OrderedDict()

    async def find(self, ref: PlannerRef | None) -> Planner:
        """The planner of a policy; None: version 0. Raises `ObjectsUnavailable`, `DigestMismatch`, and `Rejected` for
        a file that is no planner."""
        if ref is None:
            return Version0(TASK_TYPES)
        if ref.sha256 not in self._known:
            self._known[ref.sha256] = await asyncio.to_thread(self._load, ref)
        self._known.move_to_end(ref.sha256)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return self._known[ref.sha256]

    def _load(self, ref: PlannerRef) -> Planner:
        blob = self._read(ref.uri, ref.sha256)
        if hashlib.sha256(blob).hexdigest() != ref.sha256:
            raise DigestMismatch(f"{ref.uri} does not have sha256 {ref.sha256}")
        return load_planner(blob)


async def plan_by_model(ask: Callable[[str, str], Awaitable[str]], instruction: str) -> tuple[Plan, bool]:
    """The plan of a language model, and whether it had to be repaired. `ask`: its answer to a system prompt and a text.

    Raises `Rejected` where the second try is no plan either, and what `ask` does.
    """
    first = await ask(SYSTEM, instruction)
    try:
        return checked_plan(first), False
    except Rejected as error:
        wrong = str(error)
    mending = msgspec.json.encode({"task": instruction, "your_plan": first[:8000], "what_is_wrong": wrong}).decode()
    return checked_plan(await ask(SYSTEM, f"Your plan cannot be run. Mend it.\n{mending}")), True
