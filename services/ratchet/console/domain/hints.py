"""Hints: which job, rollout or trajectory changed, in one line each, and no more of them than a page can use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from ratchet.bus.message import Message
from ratchet.core.contract import Alert, Feedback, ModelDeployed, ModelRollout, Preference, Reward, TrainingStatus
from ratchet.core.contract.http.console import HintOut

MOST = 20
"""Most hints of a kind at a time; where more changed, one hint without a subject says how many."""
_PLURAL = {"job": "jobs", "rollout": "rollouts", "alert": "alerts", "trajectory": "trajectories", "reward": "rewards"}


def hint_of(message: Message, at: datetime) -> HintOut | None:
    """The hint that a message gives; None for one that no page shows."""
    make = _HINTS.get(type(message))
    return make(message, at) if make is not None else None


def trajectory_hint(role: str, at: datetime) -> HintOut:
    """A trajectory ended, of which the head of its message says only the role."""
    return HintOut(kind="trajectory", role=role, subject=None, at=at, text=f"a trajectory of {role} ended", count=1)


def _job(message: TrainingStatus, at: datetime) -> HintOut:
    percent = message.progress.percent_complete if message.progress is not None else None
    text = f"job {message.status}" + (f", {percent:.0f} %" if percent is not None else "")
    return HintOut(kind="job", role=message.role, subject=message.training_job_id, at=at, text=text, count=1)


def _rollout(message: ModelRollout, at: datetime) -> HintOut:
    text = f"{message.verdict.replace('_', ' ')}: {message.reason}"
    return HintOut(kind="rollout", role=message.role, subject=message.rollout_id, at=at, text=_line(text), count=1)


def _policy(message: ModelDeployed, at: datetime) -> HintOut:
    text = f"{message.role}@{message.policy_version} {(message.state or '').replace('_', ' ')}".rstrip()
    return HintOut(kind="rollout", role=message.role, subject=None, at=at, text=text, count=1)


def _alert(message: Alert, at: datetime) -> HintOut:
    text = f"over: {message.summary}" if message.cleared else message.summary
    return HintOut(kind="alert", role=message.role, subject=message.key, at=at, text=_line(text), count=1)


def _reward(message: Reward, at: datetime) -> HintOut:
    text = f"reward {message.total_reward:.2f}"
    return HintOut(kind="reward", role=message.role, subject=message.trajectory_id, at=at, text=text, count=1)


def _feedback(message: Feedback, at: datetime) -> HintOut:
    return HintOut(kind="feedback", role=message.role, subject=message.trajectory_id, at=at, text=message.kind, count=1)


def _preference(message: Preference, at: datetime) -> HintOut:
    return HintOut(kind="feedback", role=message.role, subject=None, at=at, text="preference", count=1)


def _line(text: str) -> str:
    """The beginning of what a person or a service wrote, as one line."""
    return " ".join(text[:200].split())


_HINTS: Mapping[type[Message], Callable[[Any, datetime], HintOut]] = {
    TrainingStatus: _job,
    ModelRollout: _rollout,
    ModelDeployed: _policy,
    Alert: _alert,
    Reward: _reward,
    Feedback: _feedback,
    Preference: _preference,
}
"""`Any`: each takes the message of its key."""


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
