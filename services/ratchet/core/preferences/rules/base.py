"""A rule looks at two tries of a task and decides which one is better, or gives the reason why it cannot decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ratchet.bus.message import JsonObject
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS

Chat = list[JsonObject]
"""Messages in OpenAI's form."""

NO_DIFFERENCE = "no_difference"
NO_REWARD = "no_reward"
ROUNDING = 1e-9
"""Rewards are sums of floats: a difference that misses the margin by less reaches it."""


@dataclass(frozen=True, slots=True)
class Try:
    """One trajectory, as far as rules look at it."""

    trajectory_id: str
    role: str
    task_key: str
    """Group key, or task id: equal keys of one role are tries of one task."""
    messages: Chat = field(default_factory=Chat)
    tools: Chat = field(default_factory=Chat)
    reward: float | None = None
    """The total; None without a reward, or with one of confidence 0."""
    success: bool | None = None
    """Whether a check other than the agent's own found success or failure; None without one."""
    rag: bool | None = None
    """Its label `rag`: whether it was played with retrieval."""
    group_key: str | None = None
    domain: str | None = None
    arms: frozenset[str] = frozenset()
    """Those of its calls, and the one that it claims; known with its texts."""
    user_ref: str | None = None
    """Whose it is; known with its texts."""

    @property
    def is_left_out(self) -> bool:
        """Whether nothing learns from it: evaluation traffic, or a try whose policy changed in flight."""
        return bool(self.arms & LEFT_OUT_ARMS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first of two tries is better, or the second is."""

    first: bool
    rater: str
    """The test that decided."""
    strength: float
    """0..1; stronger pairs of a task are taken first."""
    confidence: float | None = None
    """0..1, a member of the preference; None where the rule does not measure it."""


class Rule(Protocol):
    """Prefers one of two tries. Swapping them swaps the verdict."""

    @property
    def source(self) -> str:
        """`source` of the preferences."""
        ...

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """The verdict, or a token for the reason why the rule cannot decide."""
        ...
