"""Reports for people, as Markdown and HTML: what a day or a week brought, and what a training came to. Pure.

Reasons, names and errors hold words of people and agents: redacted, bounded and on one line here, in Markdown in code
spans, in HTML escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import TypeVar, cast

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.http.statistics import GroupOut
from ratchet.core.contract.notifications import ReportKind
from ratchet.core.rules.alert_book import Noticed
from ratchet.core.rules.job_facts import facts_of, figures_of, sentence_of
from ratchet.core.rules.redaction import redacted
from ratchet.core.rules.texts import one_line

T = TypeVar("T")

DAILY: ReportKind = "daily"
WEEKLY: ReportKind = "weekly"
JOB: ReportKind = "job"
SPANS = {DAILY: timedelta(days=1), WEEKLY: timedelta(weeks=1)}
"""What a report of a time is about."""
MOST_LISTED = 20
"""Lines of a section; it counts the others."""
LONGEST = 300
"""Characters of a line's words by people."""
PROMOTE = frozenset({"promote"})
TAKEN_BACK = frozenset({"roll_back", "suspend", "revert"})
"""Verdicts that take traffic from a policy."""
CHANGES = frozenset({"start", "promote", "refuse", "abort", "withdraw", "supersede"})
"""Verdicts that a person wants to hear of, besides those."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and a line for each of its subjects."""

    title: str
    lines: Sequence[str]
    empty: str = "None."


@dataclass(frozen=True, slots=True)
class Report:
    """A title, and what is below it."""

    title: str
    since: datetime
    until: datetime
    sections: Sequence[Section]
    figures: JsonObject

    def markdown(self) -> str:
        """As Markdown."""
        parts = [f"# {self.title}"]
        for section in self.sections:
            lines = [f"- `{line.replace('`', chr(39))}`" for line in section.lines] or [section.empty]
            parts.append("\n".join((f"## {section.title}", "", *lines)))
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """As an HTML fragment without script or style, everything in it escaped."""
        parts = [f"<h1>{escape(self.title)}</h1>"]
        for section in self.sections:
            rows = "".join(f"<li>{escape(line)}</li>" for line in section.lines)
            body = f"<ul>{rows}</ul>" if rows else f"<p>{escape(section.empty)}</p>"
            parts.append(f"<h2>{escape(section.title)}</h2>\n{body}")
        return "\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """What became of a training within the time."""

    job_id: str
    role: str
    algorithm: str
    """Empty: its request is not stored."""
    state: str
    """Of its newest status within the time."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """A decision of a rollout, or a new version of a role."""

    role: str
    version: int
    """Of the candidate."""
    before: int | None
    """Of what served."""
    verdict: str
    """`registered` for a new version."""
    reason: str
    actor: str
    at: datetime
    earned: tuple[float, float, float] | None = None
    """Mean reward of the candidate less that of the policy before, and the interval of the canary's tests, which holds
    however often they looked."""

    @property
    def policy(self) -> str:
        """Name of the candidate."""
        return f"{self.role}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a time brought, of the roles that a report is about."""

    since: datetime
    until: datetime
    roles: Sequence[GroupOut] | None
    """Trajectories and calls, by role; None: more than ClickHouse adds up in time."""
    before: Sequence[GroupOut] | None
    """The same of the span before."""
    jobs: Sequence[EndedJob]
    changes: Sequence[PolicyChange]


def daily_report(facts: Facts, alerts: Iterable[Noticed]) -> Report:
    """Trajectories, rewards, trainings, policies and what was wrong. `alerts`: as they are now."""
    issues = [noticed for noticed in alerts if facts.since <= noticed.alert.at < facts.until or _holds(noticed)]
    issues.sort(key=lambda noticed: (not _holds(noticed), noticed.alert.at))
    taken_back = _of(facts.changes, TAKEN_BACK)
    sections = (
        _trajectories(facts),
        _section("Trainings", facts.jobs, _job_line, "No training was active."),
        _section("Policies and changes", _of(facts.changes, CHANGES | {"registered"}), _change_line, "No change."),
        _section("Rollbacks", taken_back, _change_line, "Nothing was taken back."),
        _section("Issues", issues, _issue_line, "No alert was raised."),
    )
    figures: JsonObject = {
        "trajectories": sum(group.trajectories for group in facts.roles or ()),
        "jobs": len(facts.jobs),
        "changes": len(facts.changes) - len(taken_back),
        "rollbacks": len(taken_back),
        "issues": len(issues),
        "issues_open": sum(map(_holds, issues)),
    }
    return Report(_title("Ratchet's day", facts.since, facts.until), facts.since, facts.until, sections, figures)


def weekly_report(facts: Facts) -> Report:
    """What changed, what it earned, and what was taken back."""
    kept, taken_back = _of(facts.changes, PROMOTE), _of(facts.changes, TAKEN_BACK)
    others = _of(facts.changes, CHANGES - PROMOTE - {"start"})
    earned = [change for change in kept if change.earned is not None]
    sections = (
        _section("What changed", kept, _change_line, "Nothing was changed."),
        _section("What it earned", earned, _earned_line, "No effect was measured."),
        _section("What was taken back", taken_back, _change_line, "Nothing was taken back."),
        _section("What was not tried", others, _change_line, "Nothing was refused or given up."),
        _trajectories(facts),
        _section("Trainings", facts.jobs, _job_line, "No training was active."),
    )
    figures: JsonObject = {"promoted": len(kept), "measured": len(earned), "taken_back": len(taken_back)}
    return Report(_title("Ratchet's week", facts.since, facts.until), facts.since, facts.until, sections, figures)


def job_report(job: JobOut) -> Report:
    """A training, once it has ended: what it was, what was measured, and what is bad of it."""
    shown = facts_of(job)
    figures = figures_of(job)
    measured = [
        f"{plain(name)}: {value:.6g}. {sentence_of(name, value) or ''}".rstrip() for name, value in figures.items()
    ]
    made = job.artifacts.final_checkpoint if job.artifacts is not None else None
    sections = (
        Section("What it was", [f"{name}: {plain(text)}" for name, value in shown.items() for text in _texts(value)]),
        Section("What was measured", measured, "Nothing was measured."),
        Section("What it made", [plain(made)] if made else [], "It made no policy."),
    )
    title = f"Training {job.training_job_id[:8]} of {job.role} {job.state}: {plain(job.algorithm)}"
    ended = job.finished_at or job.updated_at
    return Report(title, job.started_at or job.created_at, ended, sections, {**figures})


def _texts(fact: object) -> tuple[str, ...]:
    """A fact of a job; a tuple: each of them."""
    if isinstance(fact, datetime):
        return (f"{fact:%Y-%m-%d %H:%M:%S} UTC",)
    if isinstance(fact, tuple):
        return tuple(map(str, cast("tuple[object, ...]", fact)))
    return () if fact is None else (str(fact),)


def plain(text: str) -> str:
    """Words of anybody: redacted, on one line."""
    return one_line(redacted(one_line(text, 4 * LONGEST)), LONGEST)


def _title(what: str, since: datetime, until: datetime) -> str:
    return f"{what}, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"


def _section(title: str, subjects: Sequence[T], line: Callable[[T], str], empty: str) -> Section:
    lines, more = [line(subject) for subject in subjects[:MOST_LISTED]], len(subjects) - MOST_LISTED
    return Section(title, [*lines, *([f"and {more:,} more"] if more > 0 else [])], empty)


def _of(changes: Sequence[PolicyChange], verdicts: frozenset[str]) -> list[PolicyChange]:
    return [change for change in changes if change.verdict in verdicts]


def _trajectories(facts: Facts) -> Section:
    before = {group.names[0]: group for group in facts.before or ()}
    groups = [group for group in facts.roles or () if group.trajectories or group.calls]
    empty = "None ended." if facts.roles is not None else "Too many to add up: `ratchet stats --since 1h` has the last."
    return _section(
        "Trajectories and rewards", groups, lambda group: _role_line(group, before.get(group.names[0])), empty
    )


def _role_line(group: GroupOut, before: GroupOut | None) -> str:
    ended = "1 trajectory" if group.trajectories == 1 else f"{group.trajectories:,} trajectories"
    parts = [f"{plain(group.names[0] or '-')}: {ended}"]
    if group.mean_reward is not None:
        low_high = group.reward_interval
        between = f", between {low_high[0]:.3f} and {low_high[1]:.3f}" if low_high is not None else ""
        earlier = before.mean_reward if before is not None else None
        then = f"; before {earlier:.3f}" if earlier is not None else ""
        parts.append(f"mean reward {group.mean_reward:.3f}{between} ({group.rewarded:,} rewarded{then})")
    if group.success_share is not None:
        parts.append(f"{100 * group.success_share:.1f} % of {group.outcomes:,} outcomes are successes")
    parts.append(f"{group.errors:,} of {group.calls:,} calls failed")
    if group.unpriced < group.calls:
        parts.append(f"{group.cost_usd:.2f} USD")
    return "; ".join(parts)


def _job_line(job: EndedJob) -> str:
    error = f": {plain(job.error)}" if job.error else ""
    return f"{job.role}: {plain(job.algorithm) or 'training'} {job.job_id[:8]} {job.state}{error}"


def _change_line(change: PolicyChange) -> str:
    over = f" after {change.role}@{change.before}" if change.before is not None else ""
    why = f": {plain(change.reason)}" if change.reason else ""
    by = f" (by {plain(change.actor)})" if change.actor else ""
    return f"{change.at:%a %H:%M} {change.policy}{over} {change.verdict.replace('_', ' ')}{by}{why}"


def _earned_line(change: PolicyChange) -> str:
    assert change.earned is not None  # noqa: S101 - it was chosen for that
    by, low, high = change.earned
    return f"{change.policy}: mean reward {by:+.3g}, between {low:+.3g} and {high:+.3g}"


def _holds(noticed: Noticed) -> bool:
    return not noticed.alert.cleared


def _issue_line(noticed: Noticed) -> str:
    alert = noticed.alert
    state = f"{alert.severity}, holds" if _holds(noticed) else "over"
    times = f", {noticed.times} times" if noticed.times > 1 else ""
    role = f" (role {alert.role})" if alert.role is not None else ""
    return f"{alert.at:%a %H:%M} {plain(alert.key)}{role}: {plain(alert.summary)} ({state}{times})"
