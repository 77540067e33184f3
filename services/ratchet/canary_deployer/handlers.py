"""A completed training job becomes the next version of its role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain.announcements import Facts, registration
from ratchet.canary_deployer.domain.registry import Announced, Origin, deployable, fenced, new_version
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.contract import Message, TrainingStatus
from ratchet.contract.state import Job, PolicyVersion
from ratchet.errors import DigestMismatch, NotFound, Rejected
from ratchet.stores.policies import BlobStore, read_policy

log = structlog.get_logger()


class Handlers:
    """One `async def` per message; what they return is published before the message is acked."""

    def __init__(
        self,
        policies: KvPolicies,
        jobs: Bucket[Job],
        objects: BlobStore,
        registered: Callable[[str], None],
        facts: Callable[[PolicyVersion], Facts],
        now: Callable[[], datetime],
    ) -> None:
        self._policies = policies
        self._jobs = jobs
        self._objects = objects
        self._registered = registered
        self._facts = facts
        self._now = now

    async def on_training_status(self, received: Received[TrainingStatus]) -> Sequence[Message]:
        """Register the policy of a completed job, once; every other status is none of our business."""
        status = received.message
        if not deployable(status):
            return ()
        entry = await self._jobs.get(status.training_job_id)
        job = entry.value if entry else None
        if fenced(status, job):
            log.info("status of a fenced attempt", job=status.training_job_id, attempt=status.attempt)
            return ()
        origin = await asyncio.to_thread(self._origin, status)
        now, announced = self._now(), Announced(status, job, received.as_cause())
        policy, new = await self._policies.register(
            status.role, status.training_job_id, lambda version: new_version(announced, version, origin, now)
        )
        self._registered(status.role)
        if new:
            metrics.DEPLOYMENTS.labels("registered").inc()
        return [registration(policy, self._facts(policy), status.timestamp)]

    def _origin(self, status: TrainingStatus) -> Origin | None:
        """What the policy's manifest says; None when it is broken, which the gates will find and refuse."""
        artifacts = status.artifacts
        if artifacts is None or artifacts.final_checkpoint is None:
            return None
        try:
            manifest = read_policy(self._objects, artifacts.final_checkpoint, artifacts.digest).manifest
        except (NotFound, DigestMismatch, Rejected) as error:
            log.warning("manifest cannot be read", job=status.training_job_id, reason=str(error))
            return None
        return Origin(
            manifest.base_model,
            manifest.created_at,
            manifest.dataset_digest,
            manifest.training_samples,
            manifest.final_reward,
            manifest.algorithm,
            manifest.metrics,
        )
