"""What a rule is: it looks at two tries of a task and says which one is better, or why it cannot say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ratchet.bus.message import JsonObject

Chat = list[JsonObject]
"""Messages in OpenAI's form."""

NO_DIFFERENCE = "no_difference"
NO_REWARD = "no_reward"
ROUNDING = 1e-9
"""Rewards are sums of floats: a difference that misses the margin by less reaches it."""


@dataclass(frozen=True, slots=True)
class Try:
    """One trajectory as far as preferring needs to know it."""

    trajectory_id: str
    role: str
    task_key: str
    """Group key, or task id: equal keys of one role are tries of one task."""
    messages: Chat = field(default_factory=Chat)
    tools: Chat = field(default_factory=Chat)
    reward: float | None = None
    """The total; None when it was not rewarded, or nothing was known to reward."""
    success: bool | None = None
    """None unless somebody other than the agent checked that it was a success, or that it was a failure."""
    rag: bool | None = None
    """Its label `rag`: whether it was played with retrieval."""
    group_key: str | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first of two tries is better, or the second is."""

    first: bool
    rater: str
    """Which test told them apart."""
    strength: float
    """0..1; stronger pairs of a task are taken first."""
    confidence: float | None = None
    """0..1, as the preference will say; None when the rule cannot say."""


class Rule(Protocol):
    """Prefers one of two tries. Swapping them swaps the verdict."""

    @property
    def source(self) -> str:
        """What the preferences say where they come from."""
        ...

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """The verdict, or a token for why there is none."""
        ...
