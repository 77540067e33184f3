"""What a person has to look at: each rule by itself, and the order of urgency."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ratchet.bus.message import decode
from ratchet.console.domain.attention import ALERTS, DEAD_LETTERS, LAG, Growth, Picture, attention
from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AttentionOut, LedgerOut, ServiceOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import JobBrief
from tests.support.contract_files import ROOT

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ROLLOUT = replace(
    decode((ROOT / "http/examples/deployer/RolloutOut.json").read_bytes(), RolloutOut),
    state="running",
    reason="the reason",
    parked=False,
    fault=None,
    late=None,
    finished_at=None,
    stage_since=NOW - timedelta(hours=2),
)
NAME, ROLE, ID = ROLLOUT.candidate.name, ROLLOUT.role, ROLLOUT.rollout_id
GATEWAY = ServiceOut(name="gateway", state="ready", reason=None, notes={})
BALANCED = LedgerOut(
    stream="RL_TURNS",
    consumer="collector-turns",
    watermark=9,
    stored=9,
    dead=0,
    duplicate=0,
    erased=0,
    lost=0,
    missing=0,
    absent=0,
)
LETTERS = StreamOut(name=DEAD_LETTERS, messages=0, bytes=0, consumers=[])
FAILED = JobBrief(
    training_job_id="job-1",
    role="support",
    algorithm="rloo",
    state="failed",
    created_at=NOW - timedelta(hours=3),
    finished_at=NOW - timedelta(hours=1),
    error="out of memory",
)


def picture(**parts: Any) -> Picture:
    return Picture(now=NOW, **parts)


def of_rollout(severity: str, kind: str, title: str, detail: str = "the reason") -> AttentionOut:
    since = ROLLOUT.stage_since
    return AttentionOut(severity=severity, kind=kind, title=title, detail=detail, role=ROLE, subject=ID, since=since)


def of(severity: str, kind: str, title: str, detail: str, subject: str | None) -> AttentionOut:
    return AttentionOut(
        severity=severity, kind=kind, title=title, detail=detail, role=None, subject=subject, since=None
    )


def alert(key: str, severity: str = "warning", at: datetime = NOW, **members: Any) -> Alert:
    return Alert(
        alert_id=f"{key} {at}", key=key, severity=severity, summary=f"of {key}", source="collector", at=at, **members
    )


def test_a_loop_that_runs_needs_nobody() -> None:
    calm = picture(
        rollouts=[ROLLOUT],
        ended_jobs=[replace(FAILED, state="completed", error=None)],
        services=[GATEWAY],
        ledger=[BALANCED],
        streams=[LETTERS],
        growths=[Growth("RL_TURNS", "collector-turns", 1, LAG - 1, 30)],
    )
    assert attention(calm) == []


@pytest.mark.parametrize(
    ("change", "item"),
    [
        ({"state": "awaiting_approval"}, of_rollout("act", "approval", f"{NAME} waits for an approval")),
        (
            {"state": "held"},
            of_rollout("act", "held", f"the canary of {ROLE} is held: promote it or roll it back"),
        ),
        (
            {"state": "suspended"},
            of_rollout("act", "suspended", f"the canary of {ROLE} is suspended: resume it or roll it back"),
        ),
        (
            {"fault": "engine away"},
            of_rollout("act", "rollout_fault", f"the rollout of {ROLE} cannot go on", "engine away"),
        ),
        (
            {"late": "7 min behind"},
            of_rollout("warning", "late", f"outcomes of {ROLE} come late", "7 min behind"),
        ),
        ({"state": "paused"}, of_rollout("warning", "paused", f"the canary of {ROLE} is paused")),
        (
            {"parked": True},
            of_rollout("warning", "paused", f"no candidate of {ROLE} starts until its queue is resumed"),
        ),
    ],
)
def test_a_rollout_that_needs_a_person(change: dict[str, Any], item: AttentionOut) -> None:
    assert attention(picture(rollouts=[replace(ROLLOUT, **change)])) == [item]


@pytest.mark.parametrize("state", ["refused", "rolled_back", "aborted", "withdrawn"])
def test_a_candidate_that_did_not_make_it_is_shown_for_a_day(state: str) -> None:
    ended = NOW - timedelta(hours=23)
    (item,) = attention(picture(rollouts=[replace(ROLLOUT, state=state, finished_at=ended)]))
    assert (item.kind, item.title, item.since) == ("candidate", f"{NAME} was {state.replace('_', ' ')}", ended)
    old = replace(ROLLOUT, state=state, finished_at=NOW - timedelta(hours=25))
    assert attention(picture(rollouts=[old])) == []


def test_services_that_are_away_not_ready_or_note_a_fault() -> None:
    away = ServiceOut(name="canary_deployer", state="away", reason="refused", notes={})
    waiting = ServiceOut(name="rl_coordinator", state="not ready", reason="broker", notes={})
    noting = replace(GATEWAY, notes={"engines": "one replica is away"})
    unknown = ServiceOut(name="trainer_worker", state="unknown", reason="no address", notes={})
    assert attention(picture(services=[noting, waiting, away, unknown])) == [
        of("act", "service", "canary_deployer does not answer", "refused", "canary_deployer"),
        of("warning", "service", "rl_coordinator is not ready", "broker", "rl_coordinator"),
        of("warning", "service", "gateway: engines", "one replica is away", "gateway"),
    ]


def test_messages_that_are_not_accounted_for_or_lost() -> None:
    wrong = replace(BALANCED, missing=2, absent=3, lost=4)
    assert attention(picture(ledger=[BALANCED, wrong])) == [
        of(
            "act",
            "ledger",
            "messages of RL_TURNS are not accounted for",
            "2 settled without an entry, 3 stored without a row",
            "RL_TURNS",
        ),
        of(
            "warning",
            "ledger",
            "messages of RL_TURNS are lost for good",
            "4 are neither in ClickHouse nor in the stream",
            "RL_TURNS",
        ),
    ]


def test_a_consumer_that_falls_behind_dead_letters_and_a_full_disk() -> None:
    parts = picture(
        growths=[Growth("RL_TURNS", "collector-turns", 10, LAG, 32.4)],
        streams=[replace(LETTERS, messages=3)],
        disk="0.10 GB free",
    )
    assert attention(parts) == [
        of("act", "disk", "the disk is nearly full: servers refuse to write, or soon will", "0.10 GB free", None),
        of("warning", "lag", "collector-turns falls behind", f"{LAG} messages behind, 10 32 s ago", "RL_TURNS"),
        of(
            "warning",
            "dead_letters",
            "3 messages could not be handled",
            "`ratchet deadletters list` shows why",
            DEAD_LETTERS,
        ),
    ]


def test_failed_training_counts_while_it_is_the_roles_last_one_and_for_day() -> None:
    (item,) = attention(picture(ended_jobs=[FAILED]))
    assert item == AttentionOut(
        severity="warning",
        kind="job",
        title="the last training of support failed (rloo)",
        detail="out of memory",
        role="support",
        subject="job-1",
        since=FAILED.finished_at,
    )
    assert attention(picture(ended_jobs=[replace(FAILED, finished_at=NOW - timedelta(days=2))])) == []


def test_what_waits_for_a_person_comes_before_what_is_only_wrong() -> None:
    items = attention(
        picture(
            ended_jobs=[FAILED],
            services=[replace(GATEWAY, state="away")],
            rollouts=[replace(ROLLOUT, state="awaiting_approval"), replace(ROLLOUT, role="sales", state="held")],
        )
    )
    assert [item.kind for item in items] == ["approval", "held", "service", "job"]


def test_every_kind_of_attention_is_one_that_the_contract_lists() -> None:
    schema = json.loads(msgspec.json.encode(msgspec.json.schema(AttentionOut)))["$defs"]["AttentionOut"]
    listed = {*schema["properties"]["kind"]["enum"]}
    everything = picture(
        rollouts=[replace(ROLLOUT, state="awaiting_approval", fault="x", late="y"), replace(ROLLOUT, state="held")],
        services=[replace(GATEWAY, state="away")],
        ledger=[replace(BALANCED, lost=1)],
        streams=[replace(LETTERS, messages=1)],
        growths=[Growth("s", "c", 0, LAG, 30)],
        ended_jobs=[FAILED],
        disk="full",
        alerts=[alert("a")],
    )
    more = picture(rollouts=[replace(ROLLOUT, state="paused"), replace(ROLLOUT, state="refused", finished_at=NOW)])
    assert {item.kind for item in [*attention(everything), *attention(more)]} == listed


def test_held_alerts_are_shown_with_keys_and_critical_ones_first() -> None:
    alerts = [alert("slow", role="support"), alert("gap", "critical"), alert("begun", "info")]
    items = attention(picture(alerts=alerts))
    assert items == [
        replace(of("act", "alert", "of gap", "raised by collector", "gap"), since=NOW),
        replace(of("warning", "alert", "of slow", "raised by collector", "slow"), since=NOW, role="support"),
    ]


@pytest.mark.parametrize("key", ["training-failed:support", "rollout:support:decision", "rollout:support:failed"])
def test_an_alert_of_a_job_or_a_candidate_has_no_second_line(key: str) -> None:
    assert attention(picture(alerts=[alert(key, "critical")])) == []


def test_more_alerts_than_a_person_reads_are_counted() -> None:
    items = attention(picture(alerts=[alert(f"a{number}") for number in range(ALERTS + 7)]))
    assert (len(items), items[-1].title, items[-1].subject) == (ALERTS + 1, "7 more alerts", None)
