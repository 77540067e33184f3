"""The final tables and the claims behind the exit code.

Every number was read from ClickHouse, from key-value buckets, or from the answers of the gate's held-out command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratchet.contract.state import Job, PolicyVersion, Route
from ratchet.demo.clickhouse_facts import Facts, LedgerLine, RolloutDecision
from ratchet.demo.connections import Connections
from ratchet.demo.exams import GREEDY, SAMPLED, Exam, read_exams
from ratchet.demo.intervals import Proportion
from ratchet.demo.picture import VersionTraffic
from ratchet.demo.plan import ROLE, Plan, Rises
from ratchet.demo.scenario import Story
from ratchet.demo.world import MISJUDGED

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
        return next((one for one in reversed(self.verdicts(version)) if one.verdict == verdict), None)

    @property
    def first(self) -> int | None:
        """The version that was the first to serve: promoted over none. A first attempt that failed is not it."""
        begun = (one.version for one in self.decisions if one.verdict == "promote" and one.from_version is None)
        return next(begun, None)

    @property
    def promoted(self) -> list[int]:
        """Versions that evidence promoted over another one."""
        return [
            one.version
            for one in self.decisions
            if one.verdict == "promote" and one.actor == ITSELF and one.from_version is not None
        ]


_LEGEND = """\
greedy: the most likely token everywhere; sampled: as agents play, at temperature 1.
In brackets: 95 % intervals over tickets.
e-value: how strongly traffic speaks for a verdict. A canary that is worse by more than the margin is promoted in at
most 1 of 20 rollouts, one that is no worse than the stable policy is rolled back in at most 1 of 20."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the demo says, whether it is true, and the numbers behind it."""

    text: str
    holds: bool
    evidence: str


async def read_findings(connections: Connections, story: Story, exams: Path) -> Findings:
    """Ask the warehouse and the buckets, and read the answers in `exams`."""
    facts, policies = Facts(connections.warehouse, ROLE), await connections.policies(ROLE)
    ids = [policy.training_job_id for policy in policies if policy.training_job_id]
    found = {job_id: await connections.job(job_id) for job_id in ids}
    return Findings(
        route=await connections.route(ROLE) or Route(role=ROLE),
        policies=policies,
        jobs={job_id: job for job_id, job in found.items() if job is not None},
        by_version=await facts.by_version(),
        decisions=await facts.decisions(),
        spoiled=await facts.first_spoiled(story.bad_version) if story.bad_version else None,
        ledger=await facts.ledger(),
        rewarded=await facts.rewarded(),
        exams=await asyncio.to_thread(read_exams, exams, ROLE, [policy.version for policy in policies]),
    )


def claims(findings: Findings, story: Story, plan: Plan) -> list[Claim]:
    """Everything that has to be true if the loop closed."""
    return [
        _promotions(findings, plan),
        *_rises(findings, plan.rises),
        _no_lost_kind(findings),
        _refusal(findings, story),
        _rollback(findings, story),
        _nothing_lost(findings, story),
        _ledger(findings),
    ]


def seconds_to_roll_back(findings: Findings, version: int) -> tuple[float, float | None] | None:
    """From the start of the canary, and from the first ticket that it spoiled, to the rollback."""
    started, ended = findings.decided(version, "start"), findings.decided(version, "roll_back")
    if started is None or ended is None:
        return None
    spoiled = findings.spoiled
    since_harm = (ended.at - spoiled[0]).total_seconds() if spoiled else None
    return (ended.at - started.at).total_seconds(), since_harm


def draw_report(findings: Findings, held: Sequence[Claim], story: Story) -> RenderableType:
    """The table of versions, the held-out tickets kind by kind, then the claims."""
    table = Table(title="What happened", box=box.ROUNDED, title_justify="left")
    for name in ("policy", "made by", "greedy (95 %)", "sampled (95 %)"):
        table.add_column(name, no_wrap=True)
    table.add_column("live tickets", justify="right", no_wrap=True)
    table.add_column("verdicts")
    for policy in findings.policies:
        table.add_row(*_version_row(findings, policy))
    lines = [*(_claim_line(claim) for claim in held), _seconds_line(findings, story)]
    return Group(table, _kinds_table(findings), Text(_LEGEND, "dim"), *lines)


def _version_row(findings: Findings, policy: PolicyVersion) -> tuple[str, ...]:
    exam, live = findings.exams.get(policy.version), findings.by_version.get(policy.version)
    return (
        f"v{policy.version} {policy.digest[:8]}",
        _made_by(findings.jobs.get(policy.training_job_id or "")),
        *(str(exam.success(mode)) if exam else "not measured" for mode in (GREEDY, SAMPLED)),
        f"{live.trajectories:,}" if live else "0",
        ", ".join(dict.fromkeys(_verdict_text(one) for one in findings.verdicts(policy.version))),
    )


def _kinds_table(findings: Findings) -> RenderableType:
    """Held-out tickets by kind: the misjudged ones apart, greedy / sampled for every version."""
    exams = findings.exams
    table = Table(title="Held-out tickets solved, greedy / sampled", box=box.ROUNDED, title_justify="left")
    table.add_column("kind (* misjudged by the clerk)", no_wrap=True)
    table.add_column("tickets", justify="right")
    for version in sorted(exams):
        table.add_column(f"v{version}", no_wrap=True)
    kinds = sorted({kind for exam in exams.values() for kind in exam.kinds}, key=lambda kind: kind not in MISJUDGED)
    groups = [("all *", MISJUDGED), ("all others", frozenset(kinds) - MISJUDGED)]
    for name, chosen in (*groups, *((kind + " *" * (kind in MISJUDGED), {kind}) for kind in kinds)):
        counts = [exam.success(GREEDY, chosen) for exam in exams.values()]
        tickets = max((one.trials for one in counts if one), default=0)
        table.add_row(name, str(tickets), *(_both(exams[version], chosen) for version in sorted(exams)))
    return table


def _both(exam: Exam, kinds: Collection[str]) -> str:
    rates = [measured.rate for mode in (GREEDY, SAMPLED) if (measured := exam.success(mode, kinds)) is not None]
    return " / ".join(f"{rate:.2f}" for rate in rates)


def _verdict_text(decision: RolloutDecision) -> str:
    words = {"promote": "promoted", "roll_back": "rolled back", "refuse": "refused", "advance": "advanced"}
    if decision.verdict == "start":
        return "canary" if decision.actor == ITSELF else "canary by override"
    return words.get(decision.verdict, decision.verdict)


def _made_by(job: Job | None) -> str:
    if job is None:
        return ""
    return f"{job.algorithm}, {job.trajectories or 0:,} tickets"


def _claim_line(claim: Claim) -> Text:
    mark, style = ("✔", "green") if claim.holds else ("✘", "bold red")
    return Text(f"{mark} ", style) + Text(claim.text) + Text(f"  {claim.evidence}", "dim")


def _seconds_line(findings: Findings, story: Story) -> Text:
    seconds = seconds_to_roll_back(findings, story.bad_version) if story.bad_version else None
    if seconds is None:
        return Text("")
    since_start, since_harm = seconds
    harm = f", {since_harm:.1f} s after the first ticket that it spoiled" if since_harm is not None else ""
    spoiled = f" ({findings.spoiled[1]} spoiled in all)" if findings.spoiled else ""
    return Text(f"Rolled back {since_start:.1f} s after its canary began{harm}{spoiled}.", "bold")


def _promotions(findings: Findings, plan: Plan) -> Claim:
    shown = ", ".join(f"v{version}" for version in findings.promoted) or "none"
    return Claim(
        f"policies promoted by evidence: {plan.promotions} or more",
        len(set(findings.promoted)) >= plan.promotions,
        shown,
    )


def _rises(findings: Findings, rises: Rises | None) -> list[Claim]:
    if rises is None:
        return []
    return [_rise(findings, rises.overall, None), _rise(findings, rises.misjudged, MISJUDGED)]


def _rise(findings: Findings, least: float, kinds: Collection[str] | None) -> Claim:
    of_what = "success in the kinds that the clerk misjudged" if kinds else "held-out success"
    text = f"greedy {of_what} rose by {least:.2f} or more, intervals apart"
    ends = findings.ends()
    if ends is None:
        return Claim(text, holds=False, evidence="not measured")
    (first, last), (from_sampled, to_sampled) = (_of_both(ends, mode, kinds) for mode in (GREEDY, SAMPLED))
    rose = last.rate - first.rate >= least and last.is_above(first)
    return Claim(text, rose, f"{first} to {last}; sampled {from_sampled} to {to_sampled}")


def _no_lost_kind(findings: Findings) -> Claim:
    text = "every kind of held-out ticket is solved by some policy"
    if not findings.exams:
        return Claim(text, holds=False, evidence="not measured")
    best: dict[str, int] = {}
    for exam in findings.exams.values():
        for kind in exam.kinds:
            solved = sum(one.success for one in exam.answers if one.kind == kind)
            best[kind] = max(best.get(kind, 0), solved)
    hardest = min(best, key=lambda kind: best[kind])
    return Claim(text, best[hardest] > 0, f"least: {hardest}, {best[hardest]} times")


def _of_both(ends: tuple[Exam, Exam], mode: str, kinds: Collection[str] | None) -> tuple[Proportion, Proportion]:
    """First and last success; 0 of 1 where there was no such ticket."""
    nothing = Proportion(0, 1)
    return ends[0].success(mode, kinds) or nothing, ends[1].success(mode, kinds) or nothing


def _refusal(findings: Findings, story: Story) -> Claim:
    decision = findings.decided(story.bad_version, "refuse") if story.bad_version else None
    exam = findings.exams.get(story.bad_version) if story.bad_version else None
    valid = exam.valid_calls() if exam else None
    reason = f"{decision.reason}; " if decision else ""
    evidence = f"{reason}{valid.rate:.0%} of its tool calls are valid" if valid else reason
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
    missing, dead, lost = (sum(getattr(one, name) for one in lines) for name in ("missing", "dead", "lost"))
    evidence = f"{sum(one.accounted for one in lines):,} messages, {missing} missing, {dead} dead, {lost} lost"
    return Claim("the ledger accounts for every message", bool(lines) and missing == dead == lost == 0, evidence)
