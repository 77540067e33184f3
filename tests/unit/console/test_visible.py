"""What a key for some roles sees of the answers about all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec

from ratchet.console.domain.visible import alerts_of, drift_of, loop_of
from ratchet.console.events import Events
from ratchet.core.contract.http import console as out
from ratchet.core.rules.access import ALL_ROLES, RoleSet

AT = datetime(2026, 1, 1, tzinfo=UTC)
MINE = RoleSet(frozenset({"billing"}))
OTHER = "acme-secret"
"""Stands in whatever is not about `billing`."""


def about(role: str | None) -> out.AttentionOut:
    return out.AttentionOut(
        severity="act", kind="held", title=f"{role} is held", detail="", role=role, subject=role, since=None
    )


def in_loop(role: str) -> out.LoopRoleOut:
    return out.LoopRoleOut(
        role=role,
        stable=f"{role}@1",
        canary=None,
        weight=None,
        rollout=None,
        active_jobs=1,
        since_last_training=None,
        threshold=None,
    )


def loop() -> out.LoopOut:
    service = out.ServiceOut(name="gateway", state="not ready", reason=f"no engine of {OTHER}", notes={OTHER: "x"})
    return out.LoopOut(
        at=AT,
        minutes=[out.MinuteOut(at=AT, calls=7, failed_calls=0, trajectories=7, rewards=7, mean_reward=0.5)],
        open_trajectories=7,
        streams=[out.StreamOut(name="RL_TURNS", messages=7, bytes=7, consumers=[])],
        ledger=[],
        services=[service],
        roles=[in_loop(OTHER), in_loop("billing")],
        jobs={"running": 7},
        attention=[about(OTHER), about("billing"), about(None)],
        unread={"coordinator": f"the job of {OTHER} cannot be read"},
    )


def hint(role: str | None) -> out.HintOut:
    return out.HintOut(kind="job", role=role, subject=f"job of {role}", at=AT, text=str(role), count=1)


def test_loop_of_some_roles_has_nothing_of_others_and_no_sums() -> None:
    seen = loop_of(loop(), MINE)
    assert [state.role for state in seen.roles] == ["billing"]
    assert [item.role for item in seen.attention] == ["billing"]
    assert [service.state for service in seen.services] == ["not ready"]
    text = msgspec.json.encode(seen).decode()
    assert OTHER not in text
    assert "7" not in text
    assert loop_of(loop(), ALL_ROLES) == loop()


def test_drift_and_alerts_of_some_roles_are_theirs() -> None:
    drift = out.DriftOut(
        metrics=[
            out.WatchedOut(
                role=role,
                function="f",
                metric="reward",
                trajectories=1,
                mean=None,
                evidence=0.0,
                alert=None,
                since=None,
            )
            for role in (OTHER, "billing")
        ]
    )
    assert [metric.role for metric in drift_of(drift, MINE).metrics] == ["billing"]
    alerts = out.AlertsOut(
        alerts=[
            out.HeldAlertOut(key="k", severity="info", summary=str(role), source="s", role=role, at=AT, sent_to=[OTHER])
            for role in (OTHER, "billing", None)
        ],
        receivers=[],
    )
    assert [alert.summary for alert in alerts_of(alerts, MINE).alerts] == ["billing"]
    assert OTHER not in msgspec.json.encode(alerts_of(alerts, MINE)).decode()
    assert alerts_of(alerts, ALL_ROLES) == alerts


async def test_stream_of_some_roles_hints_at_no_others() -> None:
    async def current() -> out.LoopOut:
        return loop()

    async def follow(take: object) -> None:
        assert callable(take)
        for role in (OTHER, None, "billing"):
            take(hint(role))
        await asyncio.Event().wait()

    events = Events(current, follow, loop_s=0.01, hints_s=0.01)
    running = asyncio.create_task(events.run())
    heard = b""
    async for part in events.listen("key_0000000000", MINE):
        heard += part
        if heard.count(b"event: loop") > 1 and b"event: hint" in heard:
            break
    await events.stop()
    await running
    assert OTHER.encode() not in heard
    assert heard.count(b"event: hint") == 1
