"""Workflows in bucket `workflows`: what runners keep, so that another one can go on.

<id>            the workflow as it stands
<id>.inputs     what it begins with, while it runs
<id>.<index>.<digest>   what a sub-task's worker wrote
active.<id>     who runs it; removed once it is over and published
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import Value
from ratchet.core.contract.workflows import WORKFLOWS
from ratchet.core.errors import Conflict, Unreadable
from ratchet.core.planning.plans import sinks
from ratchet.workflows.domain.workflow import Inputs, Lease, Output, Workflow

ACTIVE = "active"
FULL = 0.8
"""Share of the bucket."""


class WorkflowStore:
    """Raises what `Bucket` does."""

    def __init__(self, bus: Bus) -> None:
        self._workflows = Bucket(bus, WORKFLOWS, Workflow)
        self._inputs = Bucket(bus, WORKFLOWS, Inputs)
        self._outputs = Bucket(bus, WORKFLOWS, Output)
        self._leases = Bucket(bus, WORKFLOWS, Lease)
        self._keys = Bucket(bus, WORKFLOWS, Value)

    async def create(self, workflow: Workflow, inputs: Inputs) -> int:
        """Write a workflow and what it begins with; returns its revision. Raises `Conflict` where the id is taken.

        The lease's holder alone may: it writes over what one that was killed began with.
        """
        if await self.get(workflow.workflow_id) is not None:
            raise Conflict(f"there is a workflow {workflow.workflow_id}")
        await self._inputs.put(f"{workflow.workflow_id}.inputs", inputs)
        return await self._workflows.create(workflow.workflow_id, workflow)

    async def get(self, workflow_id: str) -> Entry[Workflow] | None:
        """A workflow as it stands."""
        return await self._workflows.get(workflow_id)

    async def update(self, workflow: Workflow, revision: int) -> int:
        """Write it unless it has changed since `revision`. Raises `Conflict`."""
        return await self._workflows.update(workflow.workflow_id, workflow, revision)

    async def newest(self, most: int, may_see: Callable[[str], bool]) -> list[Workflow]:
        """The newest workflows of the roles that may be seen, the newest first: ids grow with time."""
        ids = [key for key in await self._keys.keys() if "." not in key]
        newest: list[Workflow] = []
        for workflow_id in reversed(ids):
            with suppress(Unreadable):  # of another version, which another process reads
                entry = await self.get(workflow_id)
                if entry is not None and may_see(entry.value.role):
                    newest.append(entry.value)
            if len(newest) == most:
                break
        return newest

    async def inputs(self, workflow_id: str) -> Inputs:
        """What it begins with; nothing of one that is over."""
        entry = await self._inputs.get(f"{workflow_id}.inputs")
        return entry.value if entry is not None else Inputs(texts={})

    async def has_room(self, full: float = FULL) -> bool:
        """Whether another workflow may begin: those under way need the rest, for a full bucket refuses their writes."""
        return await self._keys.filled() < full

    async def keep_output(self, workflow_id: str, index: int, text: str) -> None:
        """Keep what a worker wrote. A runner that was replaced writes over nothing of its successor."""
        await self._outputs.put(f"{workflow_id}.{index}.{digest_of(text)}", Output(text=text))

    async def outputs(self, workflow: Workflow, indices: Iterable[int]) -> dict[int, str]:
        """What the workers of these sub-tasks wrote."""
        keys = {index: f"{workflow.workflow_id}.{index}.{workflow.steps[index].output_digest}" for index in indices}
        entries = {index: await self._outputs.get(key) for index, key in keys.items()}
        return {index: entry.value.text for index, entry in entries.items() if entry is not None}

    async def leases(self) -> dict[str, Entry[Lease]]:
        """Of the workflows that are not over, by their ids."""
        held = await self._leases.below(ACTIVE)
        return {key.removeprefix(f"{ACTIVE}."): entry for key, entry in held.items() if isinstance(entry, Entry)}

    async def lease(self, workflow_id: str) -> Entry[Lease] | None:
        """Who runs a workflow."""
        return await self._leases.get(f"{ACTIVE}.{workflow_id}")

    async def hold(self, workflow_id: str, lease: Lease, revision: int | None) -> int:
        """Write who runs it; None: it has none yet. Returns the new revision. Raises `Conflict`."""
        key = f"{ACTIVE}.{workflow_id}"
        if revision is None:
            return await self._leases.create(key, lease)
        return await self._leases.update(key, lease, revision)

    async def ask_to_cancel(self, workflow_id: str) -> bool:
        """Tell who runs a workflow that it is cancelled; False where it is over."""
        while (entry := await self.lease(workflow_id)) is not None:
            with suppress(Conflict):
                await self.hold(workflow_id, replace(entry.value, cancel=True), entry.revision)
                return True
        return False

    async def forget(self, workflow: Workflow) -> None:
        """Remove what sub-tasks wrote for others; the result's parts stay, for who asked for it."""
        last = sinks(workflow.plan) if workflow.plan is not None else []
        for index, step in enumerate(workflow.steps):
            if step.output_digest is not None and index not in last:
                await self._outputs.delete(f"{workflow.workflow_id}.{index}.{step.output_digest}")

    async def close(self, workflow_id: str) -> None:
        """It is over and published."""
        await self._inputs.delete(f"{workflow_id}.inputs")
        await self._leases.delete(f"{ACTIVE}.{workflow_id}")


def digest_of(text: str) -> str:
    """sha256 of a text's UTF-8."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
