"""The three sets of tasks of a search for a bundle: those it learns from, those it chooses by, and the gate's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.bus.kv import Bucket
from ratchet.core.contract.snapshot import TaskSets
from ratchet.core.contract.state import OTHER_ROLES, HeldOutTasks
from ratchet.core.contract.training import PromptSearch, TaskFileRef
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.evaluation.task_files import tasks_by_digest
from ratchet.core.stores.policies import BlobStore


@dataclass(frozen=True)
class TaskFiles:
    """Reads the task files that requests name, and what the deployer says of those of the gate."""

    objects: BlobStore
    held_out: Bucket[HeldOutTasks]

    async def sets_of(self, role: str, search: PromptSearch) -> TaskSets:
        """The tasks by digest. Raises `Rejected` where two of the sets share one, or a file cannot be read."""
        train, validation = [
            await asyncio.to_thread(self._read, name, getattr(search, name))
            for name in ("train_tasks", "validation_tasks")
        ]
        gate = await self.gate_of(role)
        held_out = gate.tasks if gate else []
        require_disjoint(train, validation, held_out)
        return TaskSets(train=[*train], validation=[*validation], held_out=held_out)

    async def gate_of(self, role: str) -> HeldOutTasks | None:
        """The tasks by which the gate judges a role's candidates; None where it has none."""
        entry = await self.held_out.get(role) or await self.held_out.get(OTHER_ROLES)
        return entry.value if entry else None

    def _read(self, name: str, file: TaskFileRef) -> Mapping[str, str]:
        try:
            return tasks_by_digest(self.objects.get(file.uri, file.sha256), f"prompts.{name}")
        except NotFound as error:
            raise Rejected(f"prompts.{name} {file.uri} does not exist") from error
        except DigestMismatch as error:
            raise Rejected(f"prompts.{name}: {error}") from error


def require_disjoint(train: Mapping[str, str], validation: Mapping[str, str], held_out: list[str]) -> None:
    """Raise `Rejected` for sets, ids by digest, that share a task with each other or with the gate's."""
    gate = frozenset(held_out)
    shared = {
        "prompts.train_tasks and prompts.validation_tasks": [train[digest] for digest in train if digest in validation],
        "prompts.train_tasks and the gate's held-out tasks": [train[digest] for digest in train if digest in gate],
        "prompts.validation_tasks and the gate's held-out tasks": [
            validation[digest] for digest in validation if digest in gate
        ],
    }
    problems = [
        f"{sets} share {len(ids)} task{'' if len(ids) == 1 else 's'}, such as {ids[0]!r}"
        for sets, ids in shared.items()
        if ids
    ]
    if problems:
        raise Rejected(f"{'; '.join(problems)}: a prompt is judged by tasks that it was not made from")
