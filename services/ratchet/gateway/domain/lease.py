"""Has the deployer renewed the canary's lease lately, as seen by our own clock?"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.contract.state import Route

LEASE_S = 20.0
"""A canary weight lapses after this long without an observed renewal. The deployer renews every 5 s."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest renewal that was seen, and when (monotonic seconds)."""

    rollout_id: str
    renewal: int
    seen_at: float
    grown: bool
    """False when the first look at the route found it: nobody knows for how long it had been there."""


def observe(lease: Lease | None, route: Route, now_s: float, *, first: bool = False) -> Lease | None:
    """The lease after looking at `route`, for the first time or once more: only growth counts as a sign of life.

    A canary that was not there at the look before has grown from nothing. One that the first look finds may have been
    left behind by a deployer that died, and each start of a gateway would serve it for a lease longer.
    """
    if route.canary is None:
        return None
    same = lease is not None and lease.rollout_id == route.canary.rollout_id
    if same and lease is not None and route.canary.lease <= lease.renewal:
        return lease
    return Lease(route.canary.rollout_id, route.canary.lease, now_s, grown=not first)


def has_lapsed(lease: Lease | None, route: Route, now_s: float, lease_s: float = LEASE_S) -> bool:
    """Whether the route's canary may not be served (any longer). Without a canary nothing can lapse."""
    if route.canary is None:
        return False
    return lease is None or not lease.grown or is_overdue(lease, now_s, lease_s)


def is_overdue(lease: Lease, now_s: float, lease_s: float = LEASE_S) -> bool:
    """Whether a renewal should have been seen by now."""
    return now_s - lease.seen_at > lease_s
