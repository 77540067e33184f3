"""Hints: which job, rollout or trajectory changed, in one line each, and no more of them than a page can use."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from msgspec.structs import replace

from ratchet.bus.message import Message
from ratchet.core.contract import Alert, Feedback, ModelDeployed, ModelRollout, Preference, Reward, TrainingStatus
from ratchet.core.contract.http.console import HintOut

MOST = 20
"""Most hints of a kind at a time; where more changed, one hint without a subject says how many."""
_PLURAL = {"job": "jobs", "rollout": "rollouts", "alert": "alerts", "trajectory": "trajectories", "reward": "rewards"}


def hint_of(message: Message, at: datetime) -> HintOut | None:
    """The hint that a message gives; None for one that no page shows."""
    subject: str | None = None
    match message:
        case TrainingStatus():
            percent = message.progress.percent_complete if message.progress is not None else None
            kind, subject = "job", message.training_job_id
            text = f"job {message.status}" + (f", {percent:.0f} %" if percent is not None else "")
        case ModelRollout():
            kind, subject = "rollout", message.rollout_id
            text = f"{message.verdict.replace('_', ' ')}: {message.reason}"
        case ModelDeployed():
            kind = "rollout"
            text = f"{message.role}@{message.policy_version} {(message.state or '').replace('_', ' ')}"
        case Alert():
            kind, subject = "alert", message.key
            text = f"over: {message.summary}" if message.cleared else message.summary
        case Reward():
            kind, subject, text = "reward", message.trajectory_id, f"reward {message.total_reward:.2f}"
        case Feedback():
            kind, subject, text = "feedback", message.trajectory_id, message.kind
        case Preference():
            kind, text = "feedback", "preference"
        case _:
            return None
    line = " ".join(text[:200].split())  # the beginning of what a person or a service wrote
    return HintOut(kind=kind, role=message.role, subject=subject, at=at, text=line, count=1)


def trajectory_hint(role: str, at: datetime) -> HintOut:
    """A trajectory ended, of which the head of its message says only the role."""
    return HintOut(kind="trajectory", role=role, subject=None, at=at, text=f"a trajectory of {role} ended", count=1)


class Hints:
    """Hints that wait to be sent: of several about the same thing the newest counts."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str | None, str | None], HintOut] = {}
        self._counts: Counter[tuple[str, str | None, str | None]] = Counter()

    def add(self, hint: HintOut) -> None:
        """One more."""
        key = (hint.kind, hint.role, hint.subject)
        self._waiting[key] = hint
        self._counts[key] += 1

    def take(self) -> list[HintOut]:
        """Those that wait, at most `MOST` of a kind, and a last one without a subject for the rest of the kind."""
        by_kind: dict[str, list[HintOut]] = {}
        for key, hint in self._waiting.items():
            count = self._counts[key]
            several = hint.subject is None and count > 1
            text = f"{count} {_PLURAL.get(hint.kind, hint.kind)}" if several else hint.text
            by_kind.setdefault(hint.kind, []).append(replace(hint, text=text, count=count))
        self._waiting.clear()
        self._counts.clear()
        return [hint for hints in by_kind.values() for hint in _bounded(hints)]


def _bounded(hints: list[HintOut]) -> list[HintOut]:
    if len(hints) <= MOST:
        return hints
    newest, rest = hints[-1], hints[MOST - 1 :]
    text = f"{len(rest)} more {_PLURAL.get(newest.kind, newest.kind)}"
    count = sum(hint.count for hint in rest)
    return [*hints[: MOST - 1], replace(newest, role=None, subject=None, text=text, count=count)]
