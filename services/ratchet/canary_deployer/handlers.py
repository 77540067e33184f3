"""A completed training job becomes the next version of its role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.bundle_registry import BundleRegistry
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.registry import deployable, fenced, new_version, refused, unservable
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.contract import Message, TrainingStatus
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import Job, PolicyStage, PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.stores.policies import BlobStore, read_policy

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """One `async def` per message; the consumer publishes the events that it returns before it acks the message."""

    policies: KvPolicies
    jobs: Bucket[Job]
    objects: BlobStore
    engine_kind_of: Callable[[str], str | None]
    """The kind of a role's engine; None for a role that no engine serves."""
    on_registered: Callable[[str], None]
    announcer: Announcer
    bundles: BundleRegistry
    now: Callable[[], datetime]

    async def on_training_status(self, received: Received[TrainingStatus]) -> Sequence[Message]:
        """Register the policy of a completed job, once, refused where the role's engine can never hold it.

        Other statuses, those of replaced attempts and of jobs that offer no policy do nothing.
        """
        status = received.message
        if not deployable(status):
            return ()
        entry = await self.jobs.get(status.training_job_id)
        job = entry.value if entry else None
        if fenced(status, job):
            log.info("status of a fenced attempt", job=status.training_job_id, attempt=status.attempt)
            return ()
        manifest = await asyncio.to_thread(self._read_manifest, status)
        now, cause = self.now(), received.as_cause()
        refusal = unservable(status, self.engine_kind_of(status.role))

        async def known(versions: Sequence[PolicyVersion]) -> PolicyVersion | None:
            return next((version for version in versions if version.training_job_id == status.training_job_id), None)

        async def build(version: int) -> PolicyVersion:
            made = new_version(status, job, manifest, version, now, cause)
            return refused(made, refusal) if refusal else await self.bundles.of_training(made, manifest)

        policy, new = await self.policies.register(status.role, known, build)
        self.on_registered(status.role)
        if new:
            metrics.DEPLOYMENTS.labels("registered").inc()
        registered = self.announcer.registration(policy, status.timestamp)
        if policy.stage != PolicyStage.REFUSED or policy.gate is not None:  # the gates decide, or have decided
            return [registered]
        return [registered, *self.announcer.refusal(policy, policy.reason or "", status.timestamp)]

    def _read_manifest(self, status: TrainingStatus) -> PolicyManifest | None:
        """The policy's manifest; None when it is broken: the gates will notice that, and refuse the policy."""
        artifacts = status.artifacts
        if artifacts is None or artifacts.final_checkpoint is None:
            return None
        try:
            return read_policy(self.objects, artifacts.final_checkpoint, artifacts.digest).manifest
        except (NotFound, DigestMismatch, Rejected) as error:
            log.warning("manifest cannot be read", job=status.training_job_id, reason=str(error))
            return None
