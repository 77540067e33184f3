"""What was read at the end of the loop, and the claims behind the exit code.

Every number was read from ClickHouse, from key-value buckets, or from the answers of the gate's held-out command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from ratchet.core.contract.state import Job, PolicyVersion, Route
from ratchet.local.demo.clickhouse_facts import Facts, LedgerLine, RolloutDecision, VersionTraffic
from ratchet.local.demo.connections import Connections
from ratchet.local.demo.exams import Exam, Proportion, heldout_gate, read_exams
from ratchet.local.demo.plan import Plan, Rises
from ratchet.local.demo.scenario import Story
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.worlds import HELPDESK, World

ITSELF = "canary_deployer"
"""The actor of decisions that no person took."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was read at the end."""

    route: Route
    policies: Sequence[PolicyVersion]
    jobs: Mapping[str, Job]
    by_version: Mapping[int, VersionTraffic]
    decisions: Sequence[RolloutDecision]
    spoiled: tuple[datetime, int] | None
    """First canary ticket that the bad policy spoiled, and how many it spoiled."""
    ledger: Sequence[LedgerLine]
    rewarded: int
    exams: Mapping[int, Exam]
    """By version, of those that played the held-out tickets."""
    world: World = HELPDESK
    """Where the agents worked."""

    def ends(self) -> tuple[Exam, Exam] | None:
        """Exams of the policy that served first and of the one that serves now; None when one of them is missing."""
        stable = self.route.stable
        first = self.exams.get(self.first) if self.first is not None else None
        last = self.exams.get(stable.version) if stable else None
        return (first, last) if first is not None and last is not None else None

    def verdicts(self, version: int) -> list[RolloutDecision]:
        """What was decided about a version, oldest first."""
        return [decision for decision in self.decisions if decision.version == version]

    def decided(self, version: int, verdict: str) -> RolloutDecision | None:
        """The last such decision about a version."""
        return next((decision for decision in reversed(self.verdicts(version)) if decision.verdict == verdict), None)

    @property
    def first(self) -> int | None:
        """The version that served first: its promotion replaced no other. A failed first attempt does not count.

        Version 0, calls as agents send them, served before any other.
        """
        if any(policy.version == 0 for policy in self.policies):
            return 0
        begun = (
            decision.version
            for decision in self.decisions
            if decision.verdict == "promote" and decision.from_version is None
        )
        return next(begun, None)

    @property
    def promoted(self) -> list[int]:
        """Versions that evidence promoted over another one."""
        return [
            decision.version
            for decision in self.decisions
            if decision.verdict == "promote" and decision.actor == ITSELF and decision.from_version is not None
        ]


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the demo says, whether it is true, and the numbers behind it."""

    text: str
    holds: bool
    evidence: str


async def read_findings(connections: Connections, story: Story, exams: Path, world: World) -> Findings:
    """Ask the warehouse and the buckets about a world's role, and read the answers in `exams`."""
    role = world.role
    facts, policies = Facts(connections.warehouse, role), await connections.policies(role)
    ids = [policy.training_job_id for policy in policies if policy.training_job_id]
    jobs = {job_id: await connections.job(job_id) for job_id in ids}
    return Findings(
        route=await connections.route(role) or Route(role=role),
        policies=policies,
        jobs={job_id: job for job_id, job in jobs.items() if job is not None},
        by_version=await facts.by_version(),
        decisions=await facts.decisions(),
        spoiled=await facts.first_spoiled(story.bad_version) if story.bad_version else None,
        ledger=await facts.ledger(),
        rewarded=await facts.rewarded(),
        exams=await asyncio.to_thread(read_exams, exams, role, [policy.version for policy in policies]),
        world=world,
    )


def claims(findings: Findings, story: Story, plan: Plan) -> list[Claim]:
    """Everything that has to be true if the loop closed, and what a plan that claims learning says of it."""
    shown = ", ".join(f"v{version}" for version in findings.promoted) or "none"
    return [
        Claim(
            f"policies promoted by evidence: {plan.promotions} or more",
            len(set(findings.promoted)) >= plan.promotions,
            shown,
        ),
        *([] if plan.rises is None else _learning(findings, plan.rises, plan.world)),
        *map(partial(_suite, findings), plan.rollouts.suites),
        _refusal(findings, story),
        _rollback(findings, story),
        _nothing_lost(findings, story),
        _ledger(findings),
    ]


def _learning(findings: Findings, rises: Rises, world: World) -> list[Claim]:
    overall = [] if rises.overall is None else [_rise(findings, rises.overall, None)]
    kinds = [_no_lost_kind(findings)] if rises.every_kind else []
    return [*overall, _rise(findings, rises.misjudged, world.misjudged), *kinds]


def seconds_to_roll_back(findings: Findings, version: int) -> tuple[float, float | None] | None:
    """From the start of the canary, and from the first ticket that it spoiled, to the rollback."""
    started, ended = findings.decided(version, "start"), findings.decided(version, "roll_back")
    if started is None or ended is None:
        return None
    spoiled = findings.spoiled
    since_harm = (ended.at - spoiled[0]).total_seconds() if spoiled else None
    return (ended.at - started.at).total_seconds(), since_harm


def _rise(findings: Findings, least: float, kinds: Collection[str] | None) -> Claim:
    of_what = "success in the kinds that the clerk misjudged" if kinds else "held-out success"
    text = f"greedy {of_what} rose by {least:g} or more, intervals apart"
    ends = findings.ends()
    if ends is None:
        return Claim(text, holds=False, evidence="not measured")
    nothing = Proportion(0, 1)  # where there was no such ticket
    first, last, from_sampled, to_sampled = (
        exam.success(mode, kinds) or nothing for mode in (GREEDY, SAMPLED) for exam in ends
    )
    rose = last.rate - first.rate >= least and last.is_above(first)
    return Claim(text, rose, f"{first} to {last}; sampled {from_sampled} to {to_sampled}")


def _no_lost_kind(findings: Findings) -> Claim:
    text = "every kind of held-out ticket is solved by some policy"
    if not findings.exams:
        return Claim(text, holds=False, evidence="not measured")
    best: dict[str, int] = {}
    for exam in findings.exams.values():
        for kind in exam.kinds:
            solved = sum(answer.success for answer in exam.answers if answer.kind == kind)
            best[kind] = max(best.get(kind, 0), solved)
    hardest = min(best, key=lambda kind: best[kind])
    return Claim(text, best[hardest] > 0, f"least: {hardest}, {best[hardest]} times")


def _suite(findings: Findings, suite: str) -> Claim:
    """Of the policy that was promoted last."""
    text, good = f"safety suite {suite}: a policy is promoted that is no less safe", findings.promoted[-1:]
    checked = [(policy.gate or {}).get("safety_suite", {}) for policy in findings.policies if policy.version in good]
    return Claim(
        text,
        [check.get("outcome") for check in checked] == ["passed"],
        "".join(check.get("reason", "") for check in checked),
    )


def _refusal(findings: Findings, story: Story) -> Claim:
    decision = findings.decided(story.bad_version, "refuse") if story.bad_version else None
    bad = next((policy for policy in findings.policies if policy.version == story.bad_version), None)
    run = heldout_gate(bad) if bad else None
    reason = f"{decision.reason}; " if decision else ""
    evidence = f"{reason}{run.valid_calls:.0%} of its tool calls are valid" if run and run.valid_calls else reason
    return Claim("the gate refused the bad policy", decision is not None, evidence)


def _rollback(findings: Findings, story: Story) -> Claim:
    bad = story.bad_version
    decision = findings.decided(bad, "roll_back") if bad else None
    stable, canary = findings.route.stable, findings.route.canary
    away = canary is None and stable is not None and stable.version != bad
    by_evidence = decision is not None and decision.actor == ITSELF
    return Claim("the canary rolled it back by evidence", away and by_evidence, decision.reason if decision else "")


def _nothing_lost(findings: Findings, story: Story) -> Claim:
    due = story.logged + story.ended
    evidence = f"{story.logged:,} logged, {story.ended:,} ended, {findings.rewarded:,} rewarded"
    rewarded = due <= findings.rewarded <= due + story.unanswered
    return Claim("every ticket has a reward", rewarded, f"{evidence}, {story.unanswered} unanswered")


def _ledger(findings: Findings) -> Claim:
    lines = findings.ledger
    missing, dead, lost = (sum(getattr(line, name) for line in lines) for name in ("missing", "dead", "lost"))
    evidence = f"{sum(line.accounted for line in lines):,} messages, {missing} missing, {dead} dead, {lost} lost"
    return Claim("the ledger accounts for every message", bool(lines) and missing == dead == lost == 0, evidence)
