"""Ends erasures that the collector has carried out: objects, running jobs, policies that had learned from them.

Every step may be repeated, and begins anew after a crash. An erasure that a restored backup has forgotten is asked for
again by its receipt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.core.contract.erasure import ASKED, DONE, ERASURES, REMOVED, Erasure, RewrittenSnapshot, TaintedPolicy
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.errors import Conflict, NotFound, Rejected
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.erasures import KnownErasures, ask_erasure
from ratchet.core.stores.policies import digest_in
from ratchet.rl_coordinator.erasures.domain import tainted
from ratchet.rl_coordinator.erasures.receipts import Receipts
from ratchet.rl_coordinator.erasures.s3_objects import ErasedObjects
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.registry import KvPolicies

log = structlog.get_logger()


@dataclass(frozen=True)
class Finisher:
    """A tick goes on with every erasure. Raises `Unavailable`: the next one begins anew."""

    bus: Bus
    known: KnownErasures
    erased: Erased
    objects: ErasedObjects
    jobs: Jobs
    policies: KvPolicies
    receipts: Receipts
    snapshot_ref: Callable[[str], SnapshotRef]
    now: Callable[[], datetime]
    _asked: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Whether all erasures of receipts that are unknown here were asked for again."""
    _kept: dict[str, Erasure] = field(default_factory=dict[str, Erasure], init=False)
    """By id, the erasures of the receipts that are written."""

    async def tick(self) -> None:
        """Go on with every erasure, oldest first."""
        oldest_first = await self.known.oldest_first()
        await self._ask_again({erasure.erasure_id for erasure in oldest_first})
        await self._finish([erasure for erasure in oldest_first if erasure.phase == REMOVED])
        for erasure in oldest_first:
            if erasure.phase == DONE and erasure.retrain:
                await self._train_anew(erasure)
            if self._kept.get(erasure.erasure_id) != erasure:
                await asyncio.to_thread(self.receipts.keep, erasure)
                self._kept[erasure.erasure_id] = erasure

    async def _ask_again(self, known: Collection[str]) -> None:
        """Until all were asked for once: no backup is restored while the coordinator runs."""
        for erasure in () if self._asked.is_set() else await asyncio.to_thread(self.receipts.kept):
            if erasure.erasure_id not in known:
                again = replace(erasure, phase=ASKED, ids=0, removed={}, removed_at=None, done_at=None)
                log.warning("an erasure is unknown here: carried out again", erasure=erasure.erasure_id)
                await ask_erasure(self.bus, again)
        self._asked.set()

    async def _finish(self, erasures: Sequence[Erasure]) -> None:
        """Of all together, so that each body is read once."""
        if not erasures:
            return
        covered = {erasure.erasure_id: (erasure, await self.erased.ids(erasure.erasure_id)) for erasure in erasures}
        bodies = await asyncio.to_thread(self.objects.remove_bodies, covered)
        for erasure, ids in covered.values():
            await self._finish_one(erasure, ids, bodies[erasure.erasure_id])

    async def _finish_one(self, erasure: Erasure, ids: set[tuple[str, str]], bodies: int) -> None:
        snapshots = merged(erasure.snapshots, await asyncio.to_thread(self.objects.rewrite_snapshots, ids))
        await self.jobs.anew.begin(
            {snapshot.before: self.snapshot_ref(snapshot.after) if snapshot.after else None for snapshot in snapshots}
        )
        manifests = await asyncio.to_thread(self.objects.policy_manifests)
        names = {policy.digest: policy.name for policy in await self._registered()}
        marked = tainted(
            manifests, {digest: made_from(manifest) for digest, manifest in manifests.items()}, snapshots, names
        )

        def finished(now: Erasure | None) -> Erasure:
            removed = Counter((now or erasure).removed) + Counter(bodies=bodies, snapshots=len(snapshots))
            changes = {"removed": dict(removed), "snapshots": snapshots, "tainted": marked}
            return replace(now or erasure, phase=DONE, done_at=self.now(), **changes)

        await Bucket(self.bus, ERASURES, Erasure).change(erasure.erasure_id, finished)
        log.info("erasure done", erasure=erasure.erasure_id, ids=len(ids), policies=len(marked))

    async def _registered(self) -> list[PolicyVersion]:
        return [
            policy
            for role in await self.policies.roles()
            for policy in (await self.policies.policies_of(role)).versions.values()
        ]

    async def _train_anew(self, erasure: Erasure) -> None:
        """Ask for a training in the place of each stable policy that is tainted; remove its files once another one
        serves that is not."""
        marked = {policy.digest: policy for policy in erasure.tainted if not policy.removed}
        trainings, gone = dict(erasure.trainings), set[str]()
        for role in sorted({policy.role for policy in marked.values()}):
            policies = await self.policies.policies_of(role)
            route, stable = policies.route, policies.stable
            if stable is not None and stable.digest in marked and role not in trainings:
                job = await self._asked_for(erasure, stable, marked)
                if job is not None:
                    trainings[role] = job
            served = {policy.digest for policy in in_use(route)}
            if role in trainings and stable is not None and stable.digest not in marked:
                gone |= {
                    policy.digest for policy in marked.values() if policy.role == role and policy.digest not in served
                }
        if gone:
            await asyncio.to_thread(self.objects.remove_policies, gone)
        if gone or trainings != erasure.trainings:
            after = [replace(policy, removed=True) if policy.digest in gone else policy for policy in erasure.tainted]
            await Bucket(self.bus, ERASURES, Erasure).change(
                erasure.erasure_id, lambda now: replace(now or erasure, trainings=trainings, tainted=after)
            )

    async def _asked_for(
        self, erasure: Erasure, stable: PolicyVersion, marked: Mapping[str, TaintedPolicy]
    ) -> str | None:
        """The id of the job that trains a stable policy anew, as its own job did; None where that cannot be."""
        try:
            manifests = await asyncio.to_thread(self.objects.policy_manifests)
            job = await self.jobs.anew.ask(
                stable.training_job_id or "",
                anew_id=named_id("erasure", erasure.erasure_id, stable.digest),
                base_model=untainted_base(stable.digest, manifests, marked),
                by=erasure.asked_by,
            )
            return job.training_job_id
        except (Conflict, NotFound, Rejected) as error:
            log.warning("no training takes the place of a policy yet", policy=stable.name, reason=str(error))
            return None


def in_use(route: Route | None) -> list[ServedPolicy]:
    """The policies that a route names: engines hold them, and a rollback goes back to one."""
    if route is None:
        return []
    canary = route.canary.policy if route.canary else None
    return [policy for policy in (route.stable, route.previous, canary) if policy]


def merged(before: Sequence[RewrittenSnapshot], now: Sequence[RewrittenSnapshot]) -> list[RewrittenSnapshot]:
    """What was rewritten; a step that is repeated finds no rows any more, and must not forget where the others are."""
    after = {snapshot.before: snapshot.after for snapshot in before if snapshot.after}
    return [replace(snapshot, after=snapshot.after or after.get(snapshot.before)) for snapshot in now]


def made_from(manifest: PolicyManifest) -> set[str]:
    """Digests of the manifests that a policy continues, or is a change of."""
    named = (digest_in(manifest.parent or ""), digest_in(manifest.base_model), manifest.base_digest)
    return {digest for digest in named if digest}


def untainted_base(digest: str, manifests: Mapping[str, PolicyManifest], marked: Mapping[str, TaintedPolicy]) -> str:
    """What a policy is trained anew from: the nearest it was made from that has not learned from erased data."""
    while True:
        manifest = manifests[digest]
        before = manifest.parent or manifest.base_model
        digest = digest_in(before) or ""
        if digest in marked and digest in manifests:
            continue
        return before
