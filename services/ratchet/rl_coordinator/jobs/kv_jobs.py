"""The jobs in their bucket, with a copy in memory: the coordinator alone writes them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.contract.state import Job
from ratchet.errors import Conflict, NotFound


class KvJobs:
    """Reads from memory, writes by compare-and-set. `load` before use, and now and then to see other writers."""

    def __init__(self, jobs: Bucket[Job], aliases: Bucket[str]) -> None:
        """`aliases` holds the job id of every idempotency key."""
        self._jobs = jobs
        self._aliases = aliases
        self._known: dict[str, Job] = {}
        self._oldest_first: list[Job] | None = None

    async def load(self) -> None:
        """Read every job again. What this process changes meanwhile is newer than what is read."""
        before = dict(self._known)
        stored = await self._jobs.items()
        for key in before.keys() | stored.keys():
            if self._known.get(key) is before.get(key):
                self._remember(key, stored[key].value if key in stored else None)

    def all_jobs(self) -> list[Job]:
        """All known jobs, oldest first."""
        if self._oldest_first is None:
            self._oldest_first = sorted(self._known.values(), key=lambda job: (job.created_at, job.training_job_id))
        return [*self._oldest_first]

    async def get_job(self, job_id: str) -> Job:
        """The job as it is stored now. Raises `NotFound`."""
        entry = await self._jobs.get(job_id)
        if entry is None:
            raise NotFound(f"no such job: {job_id}")
        self._remember(job_id, entry.value)
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
            await self._jobs.create(job.training_job_id, job)
        except Conflict:
            return await self.get_job(job.training_job_id), False
        self._remember(job.training_job_id, job)
        return job, True

    async def change_job(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Apply a pure function to a job; again on its newer value if another writer was faster. Raises `NotFound`."""

        def existing(job: Job | None) -> Job:
            if job is None:
                raise NotFound(f"no such job: {job_id}")
            return change(job)

        changed = await self._jobs.change(job_id, existing)
        self._remember(job_id, changed)
        return changed

    async def remove_job(self, job: Job) -> None:
        """Forget an ended job, and its idempotency key. Nothing changes such a job: there is no revision to compare."""
        key = job.request.idempotency_key
        if key is not None:
            await self._aliases.delete(_alias(job.role, key))
        await self._jobs.delete(job.training_job_id)
        self._remember(job.training_job_id, None)

    def _remember(self, job_id: str, job: Job | None) -> None:
        if job is None:
            self._known.pop(job_id, None)
        else:
            self._known[job_id] = job
        self._oldest_first = None


def _alias(role: str, key: str) -> str:
    return f"request.{named_id(role, key)}"
