"""Policies found by name, fetched by digest from the object store and made ready to serve."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download

from ratchet.core.contract.policy_manifest import MODEL, PolicyManifest
from ratchet.core.errors import NotFound
from ratchet.core.rules.model_hub import HUB_VARIABLE
from ratchet.core.stores.base_weights import require_same_weights, weights_digest
from ratchet.core.stores.policies import BlobStore, Policy, fetch_policy, find_policy, is_manifest_uri
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.torch_policies import Served, Weights, load_weights, serve, with_adapter

BASES = 2
"""Base models kept in memory for the adapters to come."""


@dataclass(frozen=True, slots=True)
class Base:
    """The model that an adapter changes."""

    name: str
    """What its bytes are known by: a digest where there is one."""
    directory: Path


def base_of(objects: BlobStore, cache: Path, manifest: PolicyManifest) -> Base:
    """The base of a manifest with an adapter: of a manifest, a directory, or a name as the trainer reads one.

    Raises `NotFound`, `DigestMismatch`, `ObjectsUnavailable` or `Rejected`. Blocking.
    """
    name = manifest.base_model
    if is_manifest_uri(name):
        base = fetch_policy(objects, name, cache, manifest.base_digest)
        return Base(base.policy.digest, base.directory)
    directory = Path(name)
    if not directory.is_dir():
        try:  # from the local cache, and from a hub only when that is allowed
            directory = Path(snapshot_download(name, local_files_only=os.environ.get(HUB_VARIABLE) != "1"))
        except (OSError, ValueError) as error:
            raise NotFound(f"no base model {name!r}: {error}") from error
    digest = weights_digest(directory, cache) if manifest.base_digest else None
    require_same_weights(name, digest, manifest.base_digest)
    return Base(digest or name, directory)


class PolicyLoader:
    """Loads one policy at a time, on a thread of its own; any thread may find one. Its methods block."""

    def __init__(self, objects: BlobStore, cache: Path) -> None:
        self._objects = objects
        self._cache = cache
        self._bases: OrderedDict[tuple[str, str | None], Weights] = OrderedDict()

    def find(self, name: str) -> Policy:
        """The policy called `name`. Raises as `stores.policies.find_policy` does."""
        return find_policy(self._objects, name)

    def load(self, uri: str) -> Served:
        """The policy behind a manifest's uri: verified, merged, probed.

        Raises `NotFound`, `DigestMismatch`, `ObjectsUnavailable` or `Rejected`.
        """
        local = fetch_policy(self._objects, uri, self._cache)
        manifest = local.policy.manifest
        if manifest.kind == MODEL:
            weights = self._kept(local.policy.digest, local.directory, manifest.dtype)
        else:
            base = base_of(self._objects, self._cache, manifest)
            weights = self._kept(base.name, base.directory, manifest.dtype)
            weights = with_adapter(weights, local.directory, manifest.tokenizer_digest)
        return serve(weights, manifest.probe)

    def _kept(self, name: str, directory: Path, dtype: str | None) -> Weights:
        key = name, dtype
        if key not in self._bases:
            self._bases[key] = load_weights(directory, dtype)
            metrics.BASE_LOADS.inc()
        self._bases.move_to_end(key)
        while len(self._bases) > BASES:
            self._bases.popitem(last=False)
        metrics.BASES.set(len(self._bases))
        return self._bases[key]
