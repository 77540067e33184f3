"""The jobs in their bucket, with a copy in memory that follows it: also what another coordinator writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import named_id
from ratchet.bus.tasks import Lasting
from ratchet.core.contract.state import Job
from ratchet.core.errors import Conflict, NotFound, Unreadable

log = structlog.get_logger()

UNREADABLE_S = 5.0
"""Pause after a value that is no job."""


class KvJobs(Lasting):
    """Reads from memory, writes by compare-and-set. A component; `load` before the others run."""

    def __init__(self, jobs: Bucket[Job], aliases: Bucket[str]) -> None:
        """`aliases` holds the job id of every idempotency key."""
        super().__init__()
        self._jobs = jobs
        self._aliases = aliases
        self._known: dict[str, Job] = {}
        self._own: dict[str, int] = {}
        """By job, the revision that this process wrote, until it comes from the bucket: what comes before is older."""
        self._oldest_first: list[Job] | None = None
        self._by_role: dict[str, list[Job]] = {}

    async def load(self) -> None:
        """Read every job again."""
        before = list(self._known)
        stored = await self._jobs.items()
        self._take(stored.items())
        self._take((key, None) for key in before if key not in stored)

    def all_jobs(self) -> list[Job]:
        """All known jobs, oldest first."""
        if self._oldest_first is None:
            self._oldest_first = sorted(self._known.values(), key=lambda job: (job.created_at, job.training_job_id))
            self._by_role = {}
            for job in self._oldest_first:
                self._by_role.setdefault(job.role, []).append(job)
        return [*self._oldest_first]

    def jobs_of(self, role: str) -> Sequence[Job]:
        """Those of a role."""
        return self.jobs_by_role().get(role, [])

    def jobs_by_role(self) -> Mapping[str, Sequence[Job]]:
        """All known jobs by role, oldest first."""
        if self._oldest_first is None:
            self.all_jobs()
        return self._by_role

    async def get_job(self, job_id: str) -> Job:
        """The job as it is stored now. Raises `NotFound`."""
        entry = await self._jobs.get(job_id)
        if entry is None:
            raise NotFound(f"no such job: {job_id}")
        self._take([(job_id, entry)])
        return entry.value

    async def find_job(self, job_id: str, role: str = "", idempotency_key: str | None = None) -> Job | None:
        """The job with this id, or the one that was asked for under the same key of the role."""
        alias = await self._aliases.get(_alias(role, idempotency_key)) if idempotency_key else None
        entry = await self._jobs.get(alias.value if alias else job_id)
        return entry.value if entry else None

    async def create_job(self, job: Job) -> tuple[Job, bool]:
        """Store a new job, or return the one that its id or idempotency key stands for; and say whether it is new."""
        key = job.request.idempotency_key
        if key is not None:
            alias = _alias(job.role, key)
            try:
                await self._aliases.create(alias, job.training_job_id)
            except Conflict:
                first = await self._aliases.get(alias)
                job_id = first.value if first else job.training_job_id
                job = replace(job, training_job_id=job_id, request=replace(job.request, training_job_id=job_id))
        try:
            revision = await self._jobs.create(job.training_job_id, job)
        except Conflict:
            return await self.get_job(job.training_job_id), False
        return self._remember(job.training_job_id, job, revision), True

    async def change_job(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Apply a pure function to a job; again on its newer value if another writer was faster. Raises `NotFound`."""
        while True:
            entry = await self._jobs.get(job_id)
            if entry is None:
                raise NotFound(f"no such job: {job_id}")
            changed = change(entry.value)
            if changed == entry.value:
                self._take([(job_id, entry)])
                return entry.value
            try:
                revision = await self._jobs.update(job_id, changed, entry.revision)
            except Conflict:
                continue
            return self._remember(job_id, changed, revision)

    async def remove_job(self, job: Job) -> bool:
        """Forget an ended job, and its idempotency key. False: it was resumed meanwhile, or is gone, and stays so."""
        job_id, key = job.training_job_id, job.request.idempotency_key
        entry = await self._jobs.get(job_id)
        if entry is None or (entry.value.attempt, entry.value.state) != (job.attempt, job.state):
            self._take([(job_id, entry)])
            return False
        try:
            await self._jobs.delete(job_id, entry.revision)
        except Conflict:
            return False
        if key is not None:  # last: without it the key of a job that stays would stand for another one
            await self._aliases.delete(_alias(job.role, key))
        self._take([(job_id, None)])
        return True

    async def _work(self) -> None:
        while True:
            try:
                async for changes in self._jobs.watch():
                    self._take(changes)
            except Unreadable as error:
                log.error("a job cannot be read: the others are read again", reason=str(error))
            await asyncio.sleep(UNREADABLE_S)

    def _take(self, changes: Iterable[tuple[str, Entry[Job] | None]]) -> None:
        """What the bucket holds, but for what this process knows to be newer."""
        for key, entry in changes:
            self._oldest_first = None
            if entry is None:
                self._known.pop(key, None)
                self._own.pop(key, None)
            elif entry.revision >= self._own.get(key, 0):
                self._known[key] = entry.value
                self._own.pop(key, None)

    def _remember(self, job_id: str, job: Job, revision: int) -> Job:
        """What this process wrote."""
        self._known[job_id], self._own[job_id] = job, revision
        self._oldest_first = None
        return job


def _alias(role: str, key: str) -> str:
    return f"request.{named_id(role, key)}"
