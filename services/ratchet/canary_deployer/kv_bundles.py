"""Bundles of policies: manifests in the object store, and the bucket `bundles`, where gateways read them by digest."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel
from ratchet.core.contract.policy_manifest import BUNDLE, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.workflows import PlannerRef
from ratchet.core.errors import DigestMismatch, Rejected
from ratchet.core.planning.files import MOST_BYTES, load_planner
from ratchet.core.planning.learned import LearnedPlanner
from ratchet.core.stores.policies import BlobStore, Policy, find_policy, publish_policy, read_policy

log = structlog.get_logger()

SWEEP_S = 3600.0
"""Between two sweeps of the bucket."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KvBundles:
    """Reads and writes bundles. Each read raises `NotFound`, `DigestMismatch`, `Rejected` or `Unavailable`."""

    def __init__(self, bucket: Bucket[Bundle], objects: BlobStore) -> None:
        self._bucket = bucket
        self._objects = objects

    async def bundle_of(self, policy: PolicyVersion) -> Bundle:
        """What a policy changes of calls: weights answer them, and change nothing else.

        Writes an entry again that the bucket has lost: gateways read no other place.
        """
        if policy.kind != BUNDLE:
            return Bundle(model=BundleModel(name=policy.name, digest=policy.digest))
        if policy.version == 0:
            return NO_BUNDLE
        entry = await self._bucket.get(policy.digest)
        if entry is not None:
            return entry.value
        manifest = (await asyncio.to_thread(read_policy, self._objects, policy.uri, policy.digest)).manifest
        bundle = manifest.bundle or NO_BUNDLE
        await self._bucket.put(policy.digest, bundle)
        return bundle

    async def weights_of(self, policy: PolicyVersion) -> PolicyVersion | None:
        """The policy that an engine holds for this one: itself, or its bundle's model; None where none does."""
        if policy.kind != BUNDLE:
            return policy
        model = (await self.bundle_of(policy)).model
        if model is None or model.digest is None:
            return None
        stored = await self.weights(model.name, model.digest)
        manifest = stored.manifest
        return msgspec.structs.replace(
            policy,
            name=model.name,
            digest=stored.digest,
            uri=stored.uri,
            kind=manifest.kind,
            base_model=manifest.base_model,
            metrics=dict(manifest.metrics),
        )

    async def weights(self, name: str, digest: str) -> Policy:
        """The adapter or model of a full name and a digest."""
        stored = await asyncio.to_thread(find_policy, self._objects, name)
        if stored.digest != digest:
            raise Rejected(f"the bundle's model {name} has another digest: {stored.digest}")
        return stored

    async def planner_of(self, ref: PlannerRef) -> LearnedPlanner:
        """The planner of a bundle, verified by its digest; of what is larger than any planner, no more is read."""

        def read() -> LearnedPlanner:
            blob = self._objects.get_part(ref.uri, 0, MOST_BYTES + 1)
            if len(blob) <= MOST_BYTES and hashlib.sha256(blob).hexdigest() != ref.sha256:
                raise DigestMismatch(f"{ref.uri} does not have sha256 {ref.sha256}")
            return load_planner(blob)

        return await asyncio.to_thread(read)

    async def digests(self) -> set[str]:
        """Of the policies whose bundles gateways can read. Raises `Unavailable`."""
        return set(await self._bucket.keys())

    async def remove(self, digest: str) -> None:
        """Take a bundle from gateways; its manifest stays, and `bundle_of` writes it again."""
        await self._bucket.delete(digest)

    async def write(self, manifest: PolicyManifest) -> Policy:
        """Store a bundle's manifest, then the bundle for gateways."""
        policy = await asyncio.to_thread(publish_policy, self._objects, manifest)
        await self._bucket.put(policy.digest, manifest.bundle or NO_BUNDLE)
        return policy


class BundleSweep:
    """Takes from gateways the bundles that no route, version or rollout names.

    A bundle is written before the version that names it, so one goes when two sweeps in a row have seen it unnamed.
    Manifests go with those of weights, when the coordinator sweeps the object store.
    """

    def __init__(self, bundles: KvBundles, registry: Sequence[Bucket[msgspec.Raw]]) -> None:
        """`registry`: the buckets that name policies."""
        self._bundles = bundles
        self._registry = registry
        self._unnamed: set[str] = set()

    async def sweep(self) -> None:
        """To be called every `SWEEP_S`. Raises `Unavailable`. Where nothing is named the registry is lost: all stay."""
        digests, named = await self._bundles.digests(), set[str]()
        for bucket in self._registry:
            for entry in (await bucket.items()).values():
                named.update(_DIGEST.findall(bytes(entry.value).decode(errors="replace")))
        unnamed = {digest for digest in digests if named and digest not in named}
        for digest in unnamed & self._unnamed:
            await self._bundles.remove(digest)
            log.info("bundle removed: nothing names it", policy=digest)
        self._unnamed = unnamed - self._unnamed
