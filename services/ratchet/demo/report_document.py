"""The final report as a document for programs: the same numbers as the table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ratchet.contract.state import PolicyVersion
from ratchet.demo.exams import GREEDY, SAMPLED, Exam
from ratchet.demo.intervals import Proportion
from ratchet.demo.report import Claim, Findings, seconds_to_roll_back
from ratchet.demo.scenario import Story
from ratchet.demo.world import MISJUDGED

Document = dict[str, Any]
"""JSON."""


def report_document(findings: Findings, held: Sequence[Claim], story: Story) -> Document:
    """Claims, policies and the seconds of the rollback."""
    seconds = seconds_to_roll_back(findings, story.bad_version) if story.bad_version else None
    since_start, since_harm = seconds or (None, None)
    return {
        "closed": all(claim.holds for claim in held),
        "claims": [{"claim": one.text, "holds": one.holds, "evidence": one.evidence} for one in held],
        "policies": [_policy(findings, policy) for policy in findings.policies],
        "rollback": {"seconds_since_start": since_start, "seconds_since_first_harm": since_harm},
    }


def _policy(findings: Findings, policy: PolicyVersion) -> Document:
    exam, live = findings.exams.get(policy.version), findings.by_version.get(policy.version)
    return {
        "name": policy.name,
        "heldout": _exam(exam) if exam else None,
        "live_tickets": live.trajectories if live else 0,
        "mean_reward": live.mean_reward if live else None,
        "verdicts": [one.verdict for one in findings.verdicts(policy.version)],
    }


def _exam(exam: Exam) -> Document:
    """Solved tickets in each mode: all, the misjudged kinds, and every kind."""
    groups: dict[str, Collection[str]] = {"all": exam.kinds, "misjudged": MISJUDGED}
    groups |= {kind: {kind} for kind in exam.kinds}
    return {
        mode: {name: _count(exam.success(mode, kinds)) for name, kinds in groups.items()} for mode in (GREEDY, SAMPLED)
    }


def _count(measured: Proportion | None) -> Document | None:
    return {"successes": measured.successes, "of": measured.trials} if measured else None
