"""The final report: tables for people, and the same numbers as a document for programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratchet.local.demo.claims import ITSELF, Claim, Findings, seconds_to_roll_back
from ratchet.local.demo.clickhouse_facts import RolloutDecision
from ratchet.local.demo.exams import Exam, Proportion
from ratchet.local.demo.scenario import Story
from ratchet_helpdesk.heldout import GREEDY, SAMPLED

Document = dict[str, Any]
"""JSON."""

_LEGEND = """\
greedy: the most likely token everywhere; sampled: as agents play, at temperature 1.
In brackets: 95 % intervals over tickets.
e-value: how strongly traffic speaks for a verdict. A canary that is worse by more than the margin is promoted in at
most 1 of 20 rollouts, one that is no worse than the stable policy is rolled back in at most 1 of 20."""


def draw_report(findings: Findings, held: Sequence[Claim], story: Story) -> RenderableType:
    """The table of versions, the held-out tickets kind by kind, then the claims."""
    table = Table(title="What happened", box=box.ROUNDED, title_justify="left")
    for name in ("policy", "made by", "greedy (95 %)", "sampled (95 %)"):
        table.add_column(name, no_wrap=True)
    table.add_column("live tickets", justify="right", no_wrap=True)
    table.add_column("verdicts")
    for policy in findings.policies:
        exam, live = findings.exams.get(policy.version), findings.by_version.get(policy.version)
        job = findings.jobs.get(policy.training_job_id or "")
        table.add_row(
            f"v{policy.version} {policy.digest[:8]}",
            f"{job.algorithm}, {job.trajectories or 0:,} tickets" if job else "",
            *(str(exam.success(mode)) if exam else "not measured" for mode in (GREEDY, SAMPLED)),
            f"{live.trajectories:,}" if live else "0",
            ", ".join(dict.fromkeys(_verdict_text(verdict) for verdict in findings.verdicts(policy.version))),
        )
    lines: list[Text] = []
    for claim in held:
        mark, style = ("✔", "green") if claim.holds else ("✘", "bold red")
        lines.append(Text(f"{mark} ", style) + Text(claim.text) + Text(f"  {claim.evidence}", "dim"))
    lines.append(_seconds_line(findings, story))
    return Group(table, _kinds_table(findings), Text(_LEGEND, "dim"), *lines)


def _kinds_table(findings: Findings) -> RenderableType:
    """Held-out tickets by kind: the misjudged ones apart, greedy / sampled for every version."""
    exams, misjudged = findings.exams, findings.world.misjudged
    table = Table(title="Held-out tickets solved, greedy / sampled", box=box.ROUNDED, title_justify="left")
    table.add_column("kind (* misjudged by the clerk)", no_wrap=True)
    table.add_column("tickets", justify="right")
    for version in sorted(exams):
        table.add_column(f"v{version}", no_wrap=True)
    kinds = sorted({kind for exam in exams.values() for kind in exam.kinds}, key=lambda kind: kind not in misjudged)
    groups = [("all *", misjudged), ("all others", frozenset(kinds) - misjudged)]
    for name, chosen in (*groups, *((kind + " *" * (kind in misjudged), {kind}) for kind in kinds)):
        counts = [exam.success(GREEDY, chosen) for exam in exams.values()]
        tickets = max((count.trials for count in counts if count), default=0)
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


def _seconds_line(findings: Findings, story: Story) -> Text:
    seconds = seconds_to_roll_back(findings, story.bad_version) if story.bad_version else None
    if seconds is None:
        return Text("")
    since_start, since_harm = seconds
    harm = f", {since_harm:.1f} s after the first ticket that it spoiled" if since_harm is not None else ""
    spoiled = f" ({findings.spoiled[1]} spoiled in all)" if findings.spoiled else ""
    return Text(f"Rolled back {since_start:.1f} s after its canary began{harm}{spoiled}.", "bold")


def report_document(findings: Findings, held: Sequence[Claim], story: Story) -> Document:
    """Claims, policies and the seconds of the rollback."""
    seconds = seconds_to_roll_back(findings, story.bad_version) if story.bad_version else None
    since_start, since_harm = seconds or (None, None)
    policies: list[Document] = []
    for policy in findings.policies:
        exam, live = findings.exams.get(policy.version), findings.by_version.get(policy.version)
        policies.append(
            {
                "name": policy.name,
                "heldout": _exam(exam, findings.world.misjudged) if exam else None,
                "live_tickets": live.trajectories if live else 0,
                "mean_reward": live.mean_reward if live else None,
                "verdicts": [verdict.verdict for verdict in findings.verdicts(policy.version)],
            }
        )
    return {
        "closed": all(claim.holds for claim in held),
        "claims": [{"claim": claim.text, "holds": claim.holds, "evidence": claim.evidence} for claim in held],
        "policies": policies,
        "rollback": {"seconds_since_start": since_start, "seconds_since_first_harm": since_harm},
    }


def _exam(exam: Exam, misjudged: Collection[str]) -> Document:
    """Solved tickets in each mode: all, the misjudged kinds, and every kind."""
    groups: dict[str, Collection[str]] = {"all": exam.kinds, "misjudged": misjudged}
    groups |= {kind: {kind} for kind in exam.kinds}
    return {
        mode: {name: _count(exam.success(mode, kinds)) for name, kinds in groups.items()} for mode in (GREEDY, SAMPLED)
    }


def _count(measured: Proportion | None) -> Document | None:
    return {"successes": measured.successes, "of": measured.trials} if measured else None
