"""What a key for some roles sees of the answers about all of them: these roles, and nothing that adds others up."""

from __future__ import annotations

from msgspec.structs import replace

from ratchet.core.contract.http.console import AlertsOut, DriftOut, LoopOut
from ratchet.core.rules.access import RoleSet


def is_visible(role: str | None, roles: RoleSet) -> bool:
    """Whether something about a role, or (None) about several or all of them, is shown."""
    return roles.is_every or (role is not None and role in roles)


def loop_of(loop: LoopOut, roles: RoleSet) -> LoopOut:
    """The loop without figures of the whole, which other roles are a part of, and without services' faults, which may
    name them."""
    if roles.is_every:
        return loop
    return replace(
        loop,
        minutes=[],
        open_trajectories=None,
        streams=[],
        ledger=[],
        services=[replace(service, reason=None, notes={}) for service in loop.services],
        roles=[state for state in loop.roles if state.role in roles],
        jobs={},
        unread=dict.fromkeys(loop.unread, "could not be read"),
        attention=[item for item in loop.attention if is_visible(item.role, roles)],
    )


def drift_of(drift: DriftOut, roles: RoleSet) -> DriftOut:
    """What is watched in the rewards of these roles."""
    return replace(drift, metrics=[metric for metric in drift.metrics if metric.role in roles])


def alerts_of(alerts: AlertsOut, roles: RoleSet) -> AlertsOut:
    """The alerts of these roles; receivers also tell of others'."""
    if roles.is_every:
        return alerts
    held = [replace(alert, sent_to=[]) for alert in alerts.alerts if is_visible(alert.role, roles)]
    return AlertsOut(alerts=held, receivers=[])
