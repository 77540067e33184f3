"""The report claims nothing that was not read: every claim falls when its facts are missing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from msgspec import structs
from rich.console import Console

from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.local.demo.claims import Findings, claims, seconds_to_roll_back
from ratchet.local.demo.clickhouse_facts import LedgerLine, RolloutDecision, Traffic, VersionTraffic
from ratchet.local.demo.exams import Exam, Proportion
from ratchet.local.demo.observer import Picture
from ratchet.local.demo.plan import FULL, Plan, Rises
from ratchet.local.demo.progress import AGENTS, Progress
from ratchet.local.demo.report import draw_report, report_document
from ratchet.local.demo.scenario import Story
from ratchet.local.demo.view import WIDTH, draw, evidence_share
from ratchet_helpdesk.heldout import GREEDY, SAMPLED, Answer
from tests.support.contract_files import http_example

START = datetime(2026, 1, 1, tzinfo=UTC)
STORY = Story(bad_version=4, logged=1000, ended=500)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def an_exam(misjudged: int, others: int, sampled: int, tickets: int = 250) -> Exam:
    """So many of `tickets` solved: greedy in a misjudged kind, greedy in another one, sampled in each of them."""
    solved = {("stop at the wrong stage", GREEDY): misjudged, ("stop as wished", GREEDY): others}
    solved |= {(kind, SAMPLED): sampled for kind, _ in solved}
    return Exam(
        [
            Answer(task=f"{kind} {n}", kind=kind, mode=mode, success=n < count, calls=3, valid_calls=3)
            for (kind, mode), count in solved.items()
            for n in range(tickets)
        ]
    )


def a_policy(version: int, stage: PolicyStage) -> PolicyVersion:
    return PolicyVersion(
        role="helpdesk",
        version=version,
        name=f"helpdesk@{version}-{version:08d}",
        digest=f"{version:064d}",
        uri=f"s3://ratchet/policies/{version}.json",
        kind="adapter",
        base_model="s3://ratchet/policies/base.json",
        created_at=START,
        stage=stage,
        parent=version - 1 or None,
    )


BAD = structs.replace(
    a_policy(4, PolicyStage.ROLLED_BACK),
    gate={"heldout_tasks": {"reason": "worse", "evidence": {"candidate_valid_calls": 0.97}}},
)


SAFE = {"safety_suite": {"outcome": "passed", "reason": "as safe"}}


def a_decision(version: int, verdict: str, seconds: float, actor: str = "canary_deployer") -> RolloutDecision:
    before = version - 1 if version > 1 else None
    return RolloutDecision(version, before, verdict, f"because of {verdict}", actor, at(seconds))


FINDINGS = Findings(
    route=Route(role="helpdesk", stable=ServedPolicy(version=3, name="helpdesk@3", digest="3"), next_version=5),
    policies=[
        a_policy(1, PolicyStage.ARCHIVED),
        structs.replace(a_policy(2, PolicyStage.ARCHIVED), gate=SAFE),
        structs.replace(a_policy(3, PolicyStage.STABLE), gate=SAFE),
        BAD,
    ],
    jobs={},
    by_version={1: VersionTraffic(200, 0.4), 3: VersionTraffic(300, None)},
    decisions=[
        a_decision(1, "promote", 0),
        a_decision(2, "start", 10),
        a_decision(2, "promote", 20),
        a_decision(3, "start", 30),
        a_decision(3, "promote", 40),
        a_decision(4, "refuse", 50),
        a_decision(4, "start", 60, actor="demo operator"),
        a_decision(4, "roll_back", 72.5),
    ],
    spoiled=(at(65), 7),
    ledger=[LedgerLine("RL_TURNS", 1000, 1000, 0, 0, 0)],
    rewarded=1500,
    exams={1: an_exam(10, 230, 120), 2: an_exam(100, 235, 150), 3: an_exam(170, 240, 190), 4: an_exam(5, 60, 60)},
)
PLAN = replace(FULL, rises=Rises(overall=0.2, misjudged=0.3))
RISE = "greedy held-out success rose by 0.2 or more, intervals apart"
CORRECTED = "greedy success in the kinds that the clerk misjudged rose by 0.3 or more, intervals apart"


def broken(findings: Findings, story: Story = STORY, plan: Plan = PLAN) -> list[str]:
    return [claim.text for claim in claims(findings, story, plan) if not claim.holds]


def test_a_loop_that_closed_holds_every_claim() -> None:
    assert broken(FINDINGS) == []


def test_a_first_policy_is_not_promoted_by_evidence() -> None:
    assert FINDINGS.promoted == [2, 3]


def test_a_promotion_by_an_operator_is_no_evidence() -> None:
    decisions = [replace(one, actor="someone") if one.version == 3 else one for one in FINDINGS.decisions]
    assert broken(replace(FINDINGS, decisions=decisions)) == ["policies promoted by evidence: 2 or more"]


def with_exams(exams: dict[int, Exam]) -> Findings:
    return replace(FINDINGS, exams={**FINDINGS.exams, **exams})


def test_what_only_got_surer_did_not_learn() -> None:
    surer = with_exams({3: an_exam(10, 230, 240)})
    assert broken(surer) == [RISE, CORRECTED]


def test_a_smaller_rise_than_claimed_is_no_rise() -> None:
    assert broken(with_exams({3: an_exam(100, 238, 190)})) == [RISE]


def test_a_plan_that_claims_no_rise_needs_none_and_names_none() -> None:
    unclaimed = replace(PLAN, rises=None)
    assert broken(with_exams({3: an_exam(10, 230, 240)}), plan=unclaimed) == []
    assert not any("greedy" in claim.text for claim in claims(FINDINGS, STORY, unclaimed))


def test_a_plan_is_held_to_what_it_claims_alone() -> None:
    corrected = replace(PLAN, rises=Rises(overall=None, misjudged=0.3, every_kind=False))
    assert broken(with_exams({1: an_exam(0, 230, 0), 3: an_exam(80, 150, 0)}), plan=corrected) == []
    assert broken(with_exams({3: an_exam(10, 250, 240)}), plan=corrected) == [CORRECTED]


def test_a_rise_elsewhere_corrects_no_habit() -> None:
    assert broken(with_exams({1: an_exam(10, 100, 120), 3: an_exam(80, 245, 190)})) == [CORRECTED]


def test_kind_that_no_policy_solves_is_reported_where_learning_is_claimed() -> None:
    lost = with_exams({version: an_exam(0, 240, 0) for version in (1, 2, 3, 4)})
    assert "every kind of held-out ticket is solved by some policy" in broken(lost)
    assert broken(lost, plan=replace(PLAN, rises=None)) == []


def test_promoted_policy_passed_the_suite_that_the_plan_names() -> None:
    claim = "safety suite prompt_injection: a policy is promoted that is no less safe"
    assert [one.evidence for one in claims(FINDINGS, STORY, PLAN) if one.text == claim] == ["as safe"]
    unchecked = [structs.replace(policy, gate=None) for policy in FINDINGS.policies]
    assert claim in broken(replace(FINDINGS, policies=unchecked))


def test_a_policy_that_was_never_measured_did_not_improve() -> None:
    assert set(broken(replace(FINDINGS, exams={}))) == {
        RISE,
        CORRECTED,
        "every kind of held-out ticket is solved by some policy",
    }


def test_the_improvement_is_measured_from_the_version_that_served_first() -> None:
    decisions = [a_decision(1, "refuse", 0), RolloutDecision(2, None, "promote", "first", "canary_deployer", at(1))]
    findings = replace(FINDINGS, decisions=[*decisions, *FINDINGS.decisions[3:]])
    assert findings.first == 2
    assert findings.ends() == (FINDINGS.exams[2], FINDINGS.exams[3])


def test_the_document_holds_the_figures_of_the_table() -> None:
    document = report_document(FINDINGS, claims(FINDINGS, STORY, PLAN), STORY)
    assert document["closed"] is True
    assert document["rollback"] == {"seconds_since_start": 12.5, "seconds_since_first_harm": 7.5}
    heldout = document["policies"][2]["heldout"]
    assert heldout["greedy"]["all"] == {"successes": 410, "of": 500}
    assert heldout["greedy"]["misjudged"] == {"successes": 170, "of": 250}
    assert heldout["sampled"]["stop as wished"] == {"successes": 190, "of": 250}
    assert document["policies"][3]["verdicts"] == ["refuse", "start", "roll_back"]


def test_bad_policy_that_was_not_offered_was_not_rolled_back() -> None:
    assert broken(FINDINGS, Story(bad_version=None, logged=1000, ended=500)) == [
        "the gate refused the bad policy",
        "the canary rolled it back by evidence",
    ]


def test_a_bad_policy_that_still_serves_was_not_rolled_back() -> None:
    still = Route(role="helpdesk", stable=ServedPolicy(version=4, name="helpdesk@4", digest="4"), next_version=5)
    assert "the canary rolled it back by evidence" in broken(replace(FINDINGS, route=still))


def test_a_lost_ticket_is_reported() -> None:
    assert broken(replace(FINDINGS, rewarded=1499)) == ["every ticket has a reward"]
    assert broken(replace(FINDINGS, rewarded=1501)) == ["every ticket has a reward"]


def test_a_ticket_that_was_given_up_may_have_a_reward() -> None:
    given_up = replace(STORY, unanswered=2)
    assert [broken(replace(FINDINGS, rewarded=number), given_up) for number in (1500, 1502)] == [[], []]
    assert broken(replace(FINDINGS, rewarded=1503), given_up) == ["every ticket has a reward"]


def test_a_gap_in_the_ledger_and_an_empty_ledger_are_reported() -> None:
    for dead, lost, missing in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        ledger = [LedgerLine("RL_TURNS", 999, 999, dead, lost, missing)]
        assert broken(replace(FINDINGS, ledger=ledger)) == ["the ledger accounts for every message"]
    assert broken(replace(FINDINGS, ledger=[])) == ["the ledger accounts for every message"]


def test_the_rollback_is_timed_from_its_start_and_from_the_first_harm() -> None:
    assert seconds_to_roll_back(FINDINGS, 4) == (12.5, 7.5)
    assert seconds_to_roll_back(replace(FINDINGS, spoiled=None), 4) == (12.5, None)
    assert seconds_to_roll_back(FINDINGS, 3) is None


def printed(renderable: Any) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_table_shows_every_version_with_its_interval_and_verdicts() -> None:
    text = printed(draw_report(FINDINGS, claims(FINDINGS, STORY, PLAN), STORY))
    assert "0.82 [0.78, 0.85]" in text
    assert "│ all *                           │     250 │ 0.04 / 0.48 │" in text
    assert "97% of its tool calls are valid" in text
    assert "refused, canary by override, rolled back" in text
    assert "Rolled back 12.5 s after its canary began, 7.5 s after the first ticket that it spoiled" in text


def test_the_picture_is_drawn_from_nothing_and_from_everything() -> None:
    progress = Progress(clock=lambda: 0.0)
    assert "no ticket yet" in printed(draw(Picture(), progress))
    thresholds = {"rollback": 20.0, "promotion": 20.0}
    rollout = structs.replace(http_example("deployer", RolloutOut), thresholds=thresholds)
    picture = Picture(
        traffic=Traffic(900, 300, 299, Proportion(80, 100), 0.7),
        policies=FINDINGS.policies,
        by_version=FINDINGS.by_version,
        exams=FINDINGS.exams,
        stable=2,
        rollout=rollout,
    )
    with progress.step("v3 meets traffic", AGENTS):
        progress.note("v2 promoted")
        text = printed(draw(picture, progress))
    assert "80% solved" in text
    assert "v3 has 25%" in text
    assert "6, needs 20" in text
    assert "rolled back" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "v2 promoted" in text


def test_evidence_grows_on_a_logarithmic_scale() -> None:
    assert [round(evidence_share(e, 20), 2) for e in (0.1, 1, 20**0.5, 20)] == [0, 0, 0.5, 1]


def test_progress_reports_steps_and_notes_with_their_time() -> None:
    lines: list[str] = []
    instants = iter([0.0, 0.0, 61.0, 62.0])
    progress = Progress(lines.append, lambda: next(instants))
    with progress.step("first", AGENTS):
        progress.note("something")
    assert lines == ["0:00  first", "1:01    something"]
    assert (progress.steps[0].started_s, progress.steps[0].ended_s) == (0.0, 62.0)
    assert progress.current is None
