"""Which tasks are whose: those of the gate, which no search may use, and those that policies were made from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import OTHER_ROLES, HeldOutTasks, PolicyVersion
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.evaluation.task_files import MOST_BYTES, read_content, tasks_by_digest
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.stores.objects import Objects

log = structlog.get_logger()


class HeldOutFiles:
    """Says in the bucket `held_out` which tasks the gate plays, so that no search for a bundle learns from them."""

    def __init__(self, files: Mapping[str, Sequence[str]], objects: Objects, bucket: Bucket[HeldOutTasks]) -> None:
        """`files`: by role, `*` for all others."""
        self._files = {OTHER_ROLES if role == ANY_ROLE else role: places for role, places in files.items()}
        self._objects = objects
        self._bucket = bucket

    async def publish(self) -> None:
        """Write what the files hold now; where one cannot be read, what was written of all of the role's stays, too."""
        for key in set(await self._bucket.keys()) - self._files.keys():
            await self._bucket.delete(key)
        for key, places in self._files.items():
            tasks, kept = list[str](), False
            for place in places:
                try:
                    tasks += await asyncio.to_thread(self._tasks_of, place)
                except (NotFound, Rejected) as error:
                    log.warning("held-out tasks cannot be read", key=key, reason=str(error))
                    kept = True
            if tasks or not kept:
                await self._bucket.change(key, partial(_written, ", ".join(places), tasks, kept=kept))

    def _tasks_of(self, place: str) -> Iterable[str]:
        if place.startswith("s3://"):
            content = self._objects.get_part(place, 0, MOST_BYTES + 1)
        else:
            content = read_content(Path(place))
        return tasks_by_digest(content, place)


def _written(file: str, tasks: Sequence[str], before: HeldOutTasks | None, *, kept: bool) -> HeldOutTasks:
    """The tasks of the files; `kept`: and those of before."""
    return HeldOutTasks(file=file, tasks=[*dict.fromkeys([*tasks, *(before.tasks if kept and before else ())])])


@dataclass(frozen=True)
class SearchedTasks:
    """The tasks that searches learned from and chose by."""

    snapshots: Snapshots
    versions: Bucket[PolicyVersion]

    async def behind(self, policy: PolicyVersion) -> frozenset[str]:
        """Those of a policy and of all that it was made from, by digest.

        Raises `NotFound`, `DigestMismatch`, `Rejected` or `Unreadable` where that cannot be seen.
        """
        digests = [policy.dataset_digest]
        while policy.parent is not None and policy.parent < policy.version:
            entry = await self.versions.get(f"{policy.role}.{policy.parent}")
            if entry is None:
                raise NotFound(f"its ancestor {policy.role}@{policy.parent} is not registered any more")
            policy = entry.value
            digests.append(policy.dataset_digest)
        return await asyncio.to_thread(self._tasks_in, [digest for digest in digests if digest is not None])

    def _tasks_in(self, digests: Iterable[str]) -> frozenset[str]:
        sets = [self.snapshots.manifest(self.snapshots.ref(digest)).tasks for digest in digests]
        return frozenset(task for named in sets if named is not None for task in (*named.train, *named.validation))
