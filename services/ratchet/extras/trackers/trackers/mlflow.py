"""MLflow: a job is a run, a policy a version of the registered model, whose aliases follow the rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from ratchet.bus.kv import Entry
from ratchet.core.contract.state import ENDED, Job, PolicyVersion, Route
from ratchet.core.errors import NotFound
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer
from ratchet.core.stores.policies import STORED, BlobStore, read_policy
from ratchet.extras.trackers.domain import (
    CURVES,
    POLICY,
    STATE,
    aliases,
    curve,
    name_of,
    run_of,
    version_tags,
)
from ratchet.extras.trackers.mlflow_rest import Mlflow, StoredRun
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers.base import Tracker


async def tracker(settings: Settings, objects: BlobStore, stack: AsyncExitStack) -> Tracker | None:
    """The server in `RATCHET_TRACKER_MLFLOW_URL`."""
    if settings.mlflow_url is None:
        return None
    peer = Peer("the MLflow server", settings.mlflow_url, bearer(settings.mlflow_token))
    client = await stack.enter_async_context(AsyncApiClient(peer))
    return MlflowTracker(Mlflow(client), objects, settings.prefix)


class MlflowTracker:
    """See `Tracker`. What is copied already is in the tags of runs and versions."""

    def __init__(self, mlflow: Mlflow, objects: BlobStore, prefix: str) -> None:
        self._mlflow = mlflow
        self._objects = objects
        self._prefix = prefix
        self._registered: dict[str, tuple[object, ...]] = {}
        """What the registry has of a role: the revisions of its policies, and its aliases."""
        self._runs: dict[str, str] = {}
        """Ids of the runs of jobs that were copied since the start."""

    async def copy_job(self, job: Job) -> None:
        run = run_of(job, self._prefix)
        if run is None:
            return
        mlflow = self._mlflow
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
        await self._copy_curves(job, stored, run.started_ms, tags)
        if job.state in ENDED:
            await self._copy_documents(job, stored)
        await mlflow.update_run(stored.info.run_id, run)
        await mlflow.log(stored.info.run_id, tags=tags | {STATE: state})

    async def _copy_curves(self, job: Job, stored: StoredRun, started_ms: int, tags: dict[str, str]) -> None:
        """The curves of the newest attempt that has ended, once; `tags` say which they were."""
        uri = job.artifacts.training_curves if job.artifacts else None
        if uri is None or stored.tag(CURVES) == uri:
            return
        try:
            lines = await asyncio.to_thread(self._objects.get, uri)
        except NotFound:
            return  # collected since
        await self._mlflow.log(stored.info.run_id, metrics=list(curve(lines, started_ms)))
        await self._mlflow.upload(stored.info, "metrics.jsonl", lines)
        tags[CURVES] = uri

    async def _copy_documents(self, job: Job, stored: StoredRun) -> None:
        """The policy's card, configuration and manifest; its weights stay where the manifest says."""
        uri = job.artifacts.final_checkpoint if job.artifacts else None
        if uri is None:
            return
        try:
            policy = await asyncio.to_thread(read_policy, self._objects, uri, kinds=STORED)
            for file in policy.manifest.documents:
                if file.name in ("README.md", "config.json"):
                    content = await asyncio.to_thread(self._objects.get, file.uri, file.sha256)
                    await self._mlflow.upload(stored.info, file.name, content)
        except NotFound:
            return  # collected since

    async def copy_role(self, role: str, policies: Sequence[Entry[PolicyVersion]], route: Entry[Route] | None) -> None:
        """See `Tracker`: versions of a role's registered model, and its aliases."""
        expected = aliases([entry.value for entry in policies], route.value if route else None)
        present = (*(entry.revision for entry in policies), *sorted(expected.items()))
        if self._registered.get(role) == present:  # a lease is renewed every few seconds, which changes the route only
            return
        mlflow, model = self._mlflow, name_of(self._prefix, role)
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
