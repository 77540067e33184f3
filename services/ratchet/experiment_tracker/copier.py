"""Brings a tracker to where jobs and policies are. Every step can be done again: nothing is recorded twice."""

from __future__ import annotations

import asyncio

import structlog

from ratchet.bus.kv import Bucket, Entry
from ratchet.contract.state import Job, PolicyVersion, Route
from ratchet.errors import NotFound, RatchetError, Unavailable
from ratchet.experiment_tracker.domain import (
    CURVES,
    ENDED,
    POLICY,
    STATE,
    aliases,
    curve,
    name_of,
    run_of,
    version_tags,
)
from ratchet.experiment_tracker.mlflow_rest import Mlflow, StoredRun
from ratchet.stores.policies import STORED, BlobStore, read_policy

log = structlog.get_logger()


class Copier:
    """Looks at what has changed since its last look; after a start that is everything."""

    def __init__(
        self, jobs: Bucket[Job], policies: Bucket[PolicyVersion], routes: Bucket[Route], objects: BlobStore, prefix: str
    ) -> None:
        self._jobs = jobs
        self._policies = policies
        self._routes = routes
        self._objects = objects
        self._prefix = prefix
        self._copied: dict[str, int] = {}
        """Revisions of the jobs that the tracker has."""
        self._registered: dict[str, tuple[object, ...]] = {}
        """What the registry has of a role: the revisions of its route and policies."""
        self._runs: dict[str, str] = {}
        """Ids of the runs of jobs that were copied since the start."""

    async def copy(self, mlflow: Mlflow) -> None:
        """Copy what has changed. One job or role that the tracker refuses does not keep it from the others."""
        for name, entry in (await self._jobs.items()).items():
            if self._copied.get(name) != entry.revision:
                try:
                    await self._copy_job(mlflow, entry.value)
                except Unavailable:
                    raise
                except RatchetError as error:
                    log.warning("a job is not copied to the tracker", job=name, reason=str(error))
                self._copied[name] = entry.revision
        routes = await self._routes.items(lambda key: "." not in key)
        policies = await self._policies.items(lambda key: "." in key)
        for role in sorted({entry.value.role for entry in policies.values()}):
            own = [entry for entry in policies.values() if entry.value.role == role]
            try:
                await self._copy_role(mlflow, role, own, routes.get(role))
            except Unavailable:
                raise
            except RatchetError as error:
                log.warning("a role's policies are not copied to the tracker", role=role, reason=str(error))

    async def _copy_job(self, mlflow: Mlflow, job: Job) -> None:
        run = run_of(job, self._prefix)
        if run is None:
            return
        experiment = await mlflow.experiment(run.experiment)
        stored = await mlflow.find_run(experiment, job.training_job_id) or await mlflow.create_run(experiment, run)
        self._runs[job.training_job_id] = stored.info.run_id
        state = f"{job.attempt}:{job.state}"
        if job.state in ENDED and stored.tag(STATE) == state:
            return
        # Parameters cannot change there: what a retry eased stays as it was asked for, and is in the policy's card.
        known = {param.key for param in stored.data.params}
        params = {name: value for name, value in run.params.items() if name not in known}
        await mlflow.log(stored.info.run_id, metrics=run.live, params=params)
        tags = dict(run.tags)
        await self._copy_curves(mlflow, job, stored, run.started_ms, tags)
        if job.state in ENDED:
            await self._copy_documents(mlflow, job, stored)
        await mlflow.update_run(stored.info.run_id, run)
        await mlflow.log(stored.info.run_id, tags=tags | {STATE: state})

    async def _copy_curves(
        self, mlflow: Mlflow, job: Job, stored: StoredRun, started_ms: int, tags: dict[str, str]
    ) -> None:
        """The curves of the newest attempt that has ended, once; `tags` say which they were."""
        uri = job.artifacts.training_curves if job.artifacts else None
        if uri is None or stored.tag(CURVES) == uri:
            return
        try:
            lines = await asyncio.to_thread(self._objects.get, uri)
        except NotFound:
            return  # collected since
        await mlflow.log(stored.info.run_id, metrics=list(curve(lines, started_ms)))
        await mlflow.upload(stored.info, "metrics.jsonl", lines)
        tags[CURVES] = uri

    async def _copy_documents(self, mlflow: Mlflow, job: Job, stored: StoredRun) -> None:
        """The policy's card, configuration and manifest; its weights stay where the manifest says."""
        uri = job.artifacts.final_checkpoint if job.artifacts else None
        if uri is None:
            return
        try:
            policy = await asyncio.to_thread(read_policy, self._objects, uri, kinds=STORED)
            for file in policy.manifest.documents:
                if file.name in ("README.md", "config.json"):
                    content = await asyncio.to_thread(self._objects.get, file.uri, file.sha256)
                    await mlflow.upload(stored.info, file.name, content)
        except NotFound:
            return  # collected since

    async def _copy_role(
        self, mlflow: Mlflow, role: str, policies: list[Entry[PolicyVersion]], route: Entry[Route] | None
    ) -> None:
        """Versions of a role's registered model, and its aliases."""
        expected = aliases([entry.value for entry in policies], route.value if route else None)
        present = (*(entry.revision for entry in policies), *sorted(expected.items()))
        if self._registered.get(role) == present:  # a lease is renewed every few seconds, which changes the route only
            return
        model = name_of(self._prefix, role)
        known = await mlflow.versions(model)
        numbers: dict[int, str] = {}
        for entry in sorted(policies, key=lambda entry: entry.value.version):
            policy, tags = entry.value, version_tags(entry.value)
            stored = known.get(tags[POLICY])
            if stored is None:
                run = self._runs.get(policy.training_job_id or "")
                stored = await mlflow.create_version(model, policy.uri, run, tags)
            else:
                changed = {name: value for name, value in tags.items() if stored.tag(name) != value}
                await mlflow.tag_version(model, stored.version, changed)
            numbers[policy.version] = stored.version
        there = await mlflow.aliases(model)
        for alias, version in expected.items():
            number = None if version is None else numbers.get(version)
            if there.get(alias) != number:
                await mlflow.set_alias(model, alias, number)
        self._registered[role] = present
