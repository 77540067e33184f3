"""How a bundle becomes the next version of its role.

It is stored first, then the version that names it. A crash in between leaves what nothing names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import registry
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.kv_bundles import KvBundles
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.role_context import Publish
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle
from ratchet.core.contract.http.rollouts import BundleIn, BundleOut
from ratchet.core.contract.policy_manifest import BUNDLE, PolicyManifest
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.errors import BadRequest, DigestMismatch, NotFound, Rejected
from ratchet.core.rules.arms import parse_model, served
from ratchet.core.rules.bundles import check_bundle
from ratchet.core.service.leadership import Lead
from ratchet.core.service.setting_names import nearest
from ratchet.core.stores.policies import Policy, encode_manifest

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class BundleRegistry:
    """Registers bundles; only the leader does."""

    policies: KvPolicies
    bundles: KvBundles
    lead: Lead
    publish: Publish
    announcer: Announcer
    on_registered: Callable[[str], None]
    started_roles: Callable[[], Awaitable[Mapping[str, int]]]
    """How many trajectories have started in each role within a week. Raises `Unavailable`."""
    now: Callable[[], datetime]

    async def register(self, role: str, asked: BundleIn, actor: str) -> BundleOut:
        """A bundle as the role's next version; the one that was made for the same key, or the live one that is the
        same. Raises `BadRequest`."""
        _ = self.lead.term
        stable = await self._stable_bundle(role)
        bundle = await self._checked(role, asked.bundle, stable)
        now = self.now()
        manifest = registry.bundle_manifest(bundle, role, now)
        store = _described if asked.dry_run else self._store
        before = await self.policies.versions(role)
        parent = registry.version_of_weights(bundle, before)
        warning = None if before else await self._doubt(role)

        async def build(version: int) -> PolicyVersion:
            stored = await store(manifest)
            begun = msgspec.structs.replace(
                registry.as_sent(role, now),
                version=version,
                stage=PolicyStage.REGISTERED,
                reason=f"{actor}: {asked.reason}",
                parent=parent,
                idempotency_key=asked.idempotency_key,
            )
            return registry.named_bundle(begun, manifest, stored.digest, stored.uri)

        async def known(versions: Sequence[PolicyVersion]) -> PolicyVersion | None:
            return _made_for(asked.idempotency_key, versions) or await self._same(bundle, versions)

        if asked.dry_run:
            same = await known(await self.policies.versions(role))
            policy = same or await build(await self.policies.next_version(role))
            made = bundle if same is None else await self.bundles.bundle_of(same)
            return BundleOut(policy=policy, bundle=made, new=same is None, warning=warning)
        if stable is None:
            await self._begin_as_sent(role)
        policy, new = await self.policies.register(role, known, build)
        if policy.stage == PolicyStage.REGISTERED:  # again, where a crash may have come between
            await self.publish([self.announcer.registration(policy, policy.created_at)])
        if new:
            metrics.DEPLOYMENTS.labels("registered").inc()
            log.info("bundle registered", role=role, policy=policy.name)
        self.on_registered(role)
        made = bundle if new else await self.bundles.bundle_of(policy)
        return BundleOut(policy=policy, bundle=made, new=new, warning=warning)

    async def of_training(self, policy: PolicyVersion, manifest: PolicyManifest | None) -> PolicyVersion:
        """What a training has made as a version of its role: where stable is a bundle, weights become part of it.

        What cannot be read stays as it is: the gates refuse it.
        """
        if manifest is None:
            return policy
        stable = await self._stable_bundle(policy.role)
        if policy.kind != BUNDLE:
            route = await self.policies.route(policy.role)
            if stable is None or route is None or route.stable is None or not route.stable.bundle:
                return policy
            if stable.planner is not None:
                return registry.refused(policy, f"{policy.role} is a role of planners: weights plan no workflows")
            bundle = registry.with_weights(stable, policy)
        else:
            try:
                made = manifest.bundle or NO_BUNDLE
                registry.require_same_purpose(made, stable)
                bundle = await self._checked(policy.role, made, None)  # it says who answers
            except Rejected as error:
                return registry.refused(policy, str(error))
            if stable is None:
                await self._begin_as_sent(policy.role)
        whole = manifest
        if bundle != manifest.bundle:
            whole = registry.bundle_manifest(bundle, policy.role, self.now(), manifest)
        stored = await self._store(whole)
        return registry.named_bundle(policy, whole, stored.digest, stored.uri)

    async def _doubt(self, role: str) -> str | None:
        """That the name of a role without policies may be mistyped; None where agents have called it."""
        started = await self.started_roles()
        if started.get(role):
            return None
        near = nearest(role, {*started, *await self.policies.roles()} - {role})
        return f"{role} has no policy, and no agent has called it within a week{near}"

    async def _checked(self, role: str, asked: Bundle, stable: Bundle | None) -> Bundle:
        """The bundle as it will serve. Raises `BadRequest` for one that could answer no call, or holds a secret."""
        try:
            check_bundle(asked)
            registry.require_no_secret(asked)
            registry.require_same_purpose(asked, stable)
            bundle = registry.completed(asked, stable)
            if bundle.planner is not None:
                if role == DEFAULT_ROLE:
                    raise Rejected(f"calls that name no role are of {role}: give planners a role of their own")
                await self.bundles.planner_of(bundle.planner)
            model = bundle.model
            if model is not None and model.digest is not None:
                if parse_model(model.name).role != role:
                    raise Rejected(f"the bundle's model {model.name} is of another role than {role}")
                await self.bundles.weights(model.name, model.digest)
        except BadRequest:
            raise
        except (Rejected, NotFound, DigestMismatch, ValueError) as error:
            raise BadRequest(str(error), param="bundle") from error
        return bundle

    async def _stable_bundle(self, role: str) -> Bundle | None:
        """What stable changes of calls; None where the role has none."""
        route = await self.policies.route(role)
        if route is None or route.stable is None:
            return None
        return await self.bundles.bundle_of(await self.policies.version(role, route.stable.version))

    async def _same(self, bundle: Bundle, versions: Sequence[PolicyVersion]) -> PolicyVersion | None:
        """The newest live version, where it changes the same of calls."""
        newest = next((policy for policy in reversed(versions) if policy.stage in registry.LIVE), None)
        try:
            return newest if newest is not None and await self.bundles.bundle_of(newest) == bundle else None
        except (NotFound, DigestMismatch, Rejected):  # a damaged one is not repeated
            return None

    async def _begin_as_sent(self, role: str) -> None:
        """Version 0 becomes stable of a role that has no stable policy: the first bundle is compared with it."""
        zero = registry.as_sent(role, self.now())
        await self.policies.create(zero)
        await self.policies.change_route(
            role, lambda route: route if route.stable else msgspec.structs.replace(route, stable=served(zero))
        )

    async def _store(self, manifest: PolicyManifest) -> Policy:
        await self.lead.confirm()
        return await self.bundles.write(manifest)


def _made_for(key: str | None, versions: Sequence[PolicyVersion]) -> PolicyVersion | None:
    """The version of that idempotency key."""
    return next((policy for policy in versions if key is not None and policy.idempotency_key == key), None)


async def _described(manifest: PolicyManifest) -> Policy:
    """The policy that the manifest would be."""
    return Policy(uri="", digest=hashlib.sha256(encode_manifest(manifest)).hexdigest(), manifest=manifest)
