"""Has the deployer renewed the canary's lease lately, as seen by our own clock?"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.messages.state import Route

LEASE_S = 20.0
"""A canary weight lapses after this long without an observed renewal. The deployer renews every 5 s."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest renewal that was seen, and when (monotonic seconds)."""

    rollout_id: str
    renewal: int
    seen_at: float


def observe(lease: Lease | None, route: Route, now_s: float) -> Lease | None:
    """The lease after looking at `route` once more: only growth counts as a sign of life."""
    if route.canary is None:
        return None
    same = lease is not None and lease.rollout_id == route.canary.rollout_id
    if same and lease is not None and route.canary.lease <= lease.renewal:
        return lease
    return Lease(route.canary.rollout_id, route.canary.lease, now_s)


def has_lapsed(lease: Lease | None, route: Route, now_s: float, lease_s: float = LEASE_S) -> bool:
    """Whether the route's canary may no longer be served. Without a canary nothing can lapse."""
    if route.canary is None:
        return False
    return lease is None or now_s - lease.seen_at > lease_s
