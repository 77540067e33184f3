"""The final table and the claims behind the exit code. Every number was read from ClickHouse or key-value buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratchet.demo.clickhouse_facts import Facts, LedgerLine, RolloutDecision
from ratchet.demo.connections import Connections
from ratchet.demo.intervals import Proportion
from ratchet.demo.picture import VersionTraffic, heldout_success
from ratchet.demo.plan import ROLE, Plan
from ratchet.demo.scenario import Story
from ratchet.messages.state import Job, PolicyVersion, Route

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

    def heldout(self, version: int) -> Proportion | None:
        """Held-out success of a version."""
        return heldout_success(self.policies, version)

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


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the demo says, whether it is true, and the numbers behind it."""

    text: str
    holds: bool
    evidence: str


async def read_findings(connections: Connections, story: Story) -> Findings:
    """Ask the warehouse and the buckets."""
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
    )


def claims(findings: Findings, story: Story, plan: Plan) -> list[Claim]:
    """Everything that has to be true if the loop closed."""
    return [
        _promotions(findings, plan),
        _improvement(findings, plan),
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
    """The table of versions, then the claims."""
    table = Table(title="What happened", box=box.ROUNDED, title_justify="left")
    table.add_column("policy", no_wrap=True)
    table.add_column("made by", no_wrap=True)
    table.add_column("held-out success (95 %)", no_wrap=True)
    table.add_column("mean reward", justify="right")
    table.add_column("live tickets", justify="right")
    table.add_column("verdicts")
    for policy in findings.policies:
        table.add_row(*_version_row(findings, policy))
    return Group(table, *(_claim_line(claim) for claim in held), _seconds_line(findings, story))


def _version_row(findings: Findings, policy: PolicyVersion) -> tuple[str, ...]:
    measured, live = findings.heldout(policy.version), findings.by_version.get(policy.version)
    reward = live.mean_reward if live else None
    return (
        f"v{policy.version} {policy.digest[:8]}",
        _made_by(findings.jobs.get(policy.training_job_id or "")),
        str(measured) if measured else "not measured",
        f"{reward:.2f}" if reward is not None else "",
        f"{live.trajectories:,}" if live else "0",
        ", ".join(dict.fromkeys(_verdict_text(one) for one in findings.verdicts(policy.version))),
    )


def _verdict_text(decision: RolloutDecision) -> str:
    words = {"promote": "promoted", "roll_back": "rolled back", "refuse": "refused", "advance": "advanced"}
    if decision.verdict == "start":
        return "canary" if decision.actor == ITSELF else "canary by override"
    return words.get(decision.verdict, decision.verdict)


def _made_by(job: Job | None) -> str:
    if job is None:
        return ""
    inverted = ", rewards inverted" if job.request.training_config.dataset.reward_transform == "negate" else ""
    return f"{job.algorithm} on {job.trajectories or 0:,}{inverted}"


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
        f"at least {plan.promotions} promoted by evidence", len(set(findings.promoted)) >= plan.promotions, shown
    )


def _improvement(findings: Findings, plan: Plan) -> Claim:
    stable = findings.route.stable
    first = findings.heldout(findings.first) if findings.first is not None else None
    best = findings.heldout(stable.version) if stable else None
    if first is None or best is None:
        return Claim("held-out success rose", holds=False, evidence="not measured")
    rose = best.is_above(first) and best.rate >= plan.best_success
    return Claim(f"held-out success rose to {plan.best_success:.0%} or more", rose, f"{first} to {best}")


def _refusal(findings: Findings, story: Story) -> Claim:
    decision = findings.decided(story.bad_version, "refuse") if story.bad_version else None
    return Claim("the gate refused the bad policy", decision is not None, decision.reason if decision else "")


def _rollback(findings: Findings, story: Story) -> Claim:
    bad = story.bad_version
    decision = findings.decided(bad, "roll_back") if bad else None
    stable, canary = findings.route.stable, findings.route.canary
    away = canary is None and stable is not None and stable.version != bad
    by_evidence = decision is not None and decision.actor == ITSELF
    return Claim("the canary rolled it back by evidence", away and by_evidence, decision.reason if decision else "")


def _nothing_lost(findings: Findings, story: Story) -> Claim:
    evidence = f"{story.ended:,} ended, {findings.rewarded:,} rewarded, {story.unanswered} unanswered"
    return Claim("every ticket has its reward", findings.rewarded == story.ended, evidence)


def _ledger(findings: Findings) -> Claim:
    missing, dead = sum(line.missing for line in findings.ledger), sum(line.dead for line in findings.ledger)
    accounted = sum(line.accounted for line in findings.ledger)
    evidence = f"{accounted:,} messages, {missing} missing, {dead} dead"
    return Claim("the ledger balances", bool(findings.ledger) and missing == dead == 0, evidence)
