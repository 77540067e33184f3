"""Manifests of registered policies, from the object store."""

from __future__ import annotations

import asyncio

from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.stores.policies import BlobStore, read_policy


class S3Manifests:
    """Reads and verifies them on a thread."""

    def __init__(self, objects: BlobStore) -> None:
        self._objects = objects

    async def read(self, policy: PolicyVersion) -> PolicyManifest:
        """See `gates.base.Manifests`."""
        return (await asyncio.to_thread(read_policy, self._objects, policy.uri, policy.digest)).manifest
