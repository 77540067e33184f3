"""Which objects of the store nothing needs any more: mark what is referred to, and sweep what is old besides.

Objects are named by their digests, and what refers to one contains its digest. So a text refers to every digest
that stands in it: also one of a later version, in a member that is not known here. What the gates say of a policy has
the policy's digest as its name, and goes when its manifest goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.stores.listing import BODIES, VALIDATIONS, StoredObject

PREFIXES = ("policies/", "checkpoints/", "snapshots/", "metrics/", "blobs/", f"{BODIES}/", f"{VALIDATIONS}/")
"""Only what is below these is ever swept, manifests first."""
_OURS = re.compile(
    rf"s3://[^/]+/(policies|checkpoints|snapshots|metrics|blobs|{VALIDATIONS})/([0-9a-f]{{64}})(\.[a-z]+)?"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")

SUPERSEDED, EXPIRED, ORPHAN = "superseded_checkpoint", "expired", "orphan"
"""Why an object goes: its job has ended and names a later checkpoint; nothing has referred to it for the retention;
no manifest that stays names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a manifest is, and what it refers to."""

    kind: str
    """The folder that it lies in; `unknown` for one that could not be read as what it should be."""
    job: str | None
    """The training job that made it; None for what a person stored."""
    refers_to: frozenset[str]
    """Digests."""


@dataclass(frozen=True, slots=True)
class Roots:
    """What refers to objects from outside of the store."""

    digests: frozenset[str]
    """All that stand in a job, policy, route or rollout."""
    open_jobs: frozenset[str]
    ended_jobs: frozenset[str]
    is_known: bool = True
    """There is a job, policy, route or rollout at all."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what nothing refers to is kept, by the store's clock."""

    grace: timedelta
    """Longer than anything takes from its first file to the manifest or job that names it."""
    retention: timedelta
    """Of manifests: snapshots, checkpoints and policies that nothing has used."""
    trash: timedelta
    """How long what was set aside can be taken back."""
    bodies: timedelta
    """Of the bodies of messages, from when they were written last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one sweep does."""

    aside: Sequence[tuple[StoredObject, str]]
    """To set aside, manifests first, each with its reason."""
    back: Sequence[StoredObject]
    """Set aside earlier, and referred to now."""
    gone: Sequence[StoredObject]
    """Set aside long enough."""


def digests_in(text: str) -> frozenset[str]:
    """Every digest that stands in a text."""
    return frozenset(_DIGEST.findall(text))


def is_manifest(uri: str) -> bool:
    """Whether the object names others."""
    match = _OURS.fullmatch(uri)
    return match is not None and match[1] not in ("blobs", "metrics", VALIDATIONS) and match[3] == ".json"


def is_body(uri: str) -> bool:
    """Whether the object is the body of a message. Its age alone counts: no stream keeps a message for longer."""
    return uri.split("/")[3] == BODIES


def plan_sweep(
    listed: Sequence[StoredObject],
    aside: Sequence[StoredObject],
    *,
    manifests: Mapping[str, Manifest],
    roots: Roots,
    retention: Retention,
    now: datetime,
) -> Plan:
    """What to set aside, to take back and to remove. `manifests`: all manifests of both, by uri.

    What was set aside refers to nothing, unless something refers to it again.
    """
    written_at = {stored.uri: stored.at for stored in listed}
    by_digest = {digest: manifest for uri, manifest in manifests.items() if (digest := digest_of(uri))}
    live = reachable(roots.digests, by_digest)
    spared = [
        uri
        for uri, manifest in manifests.items()
        if uri in written_at
        and digest_of(uri) not in live
        and _manifest_verdict(manifest, now - written_at[uri], roots, retention) is None
    ]
    live |= reachable({digest for uri in spared if (digest := digest_of(uri))}, by_digest)
    chosen: list[tuple[StoredObject, str]] = []
    for stored in sorted(listed, key=lambda item: not is_manifest(item.uri)):
        if is_body(stored.uri) and now - stored.at >= retention.bodies:
            chosen.append((stored, EXPIRED))
        digest, old = digest_of(stored.uri), now - stored.at >= retention.grace
        if digest is None or digest in live or not old:
            continue
        manifest = manifests.get(stored.uri)
        reason = ORPHAN if manifest is None else _manifest_verdict(manifest, now - stored.at, roots, retention)
        if reason is not None:
            chosen.append((stored, reason))
    back = [stored for stored in aside if digest_of(stored.uri) in live and stored.uri not in written_at]
    gone = [
        stored
        for stored in aside
        if now - stored.at >= retention.trash and (digest_of(stored.uri) not in live or stored.uri in written_at)
    ]
    return Plan(chosen, back, gone)


def reachable(start: Iterable[str], manifests: Mapping[str, Manifest]) -> set[str]:
    """The digests that are referred to, directly or by a manifest that is. `manifests`: by digest."""
    seen: set[str] = set()
    waiting = [*start]
    while waiting:
        digest = waiting.pop()
        if digest not in seen:
            seen.add(digest)
            if digest in manifests:
                waiting += manifests[digest].refers_to
    return seen


def digest_of(uri: str) -> str | None:
    """The digest in the name of an object that is ours to sweep; None for any other."""
    match = _OURS.fullmatch(uri)
    return match[2] if match else None


def tally(objects: Collection[tuple[StoredObject, str]]) -> tuple[Counter[str], Counter[str]]:
    """Objects and bytes by reason."""
    counts, sizes = Counter[str](), Counter[str]()
    for stored, reason in objects:
        counts[reason] += 1
        sizes[reason] += stored.size
    return counts, sizes


def _manifest_verdict(manifest: Manifest, age: timedelta, roots: Roots, retention: Retention) -> str | None:
    """Why a manifest goes that nothing refers to; None for one that stays."""
    if age < retention.grace or manifest.job in roots.open_jobs:
        return None
    if manifest.kind == "checkpoints" and manifest.job in roots.ended_jobs:
        return SUPERSEDED
    can_be_made_again = manifest.kind == "snapshots" or (manifest.job is not None and manifest.kind != "unknown")
    return EXPIRED if can_be_made_again and age >= retention.retention else None
