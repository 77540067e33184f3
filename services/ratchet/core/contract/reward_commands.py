"""What `ratchet rewards` asks its process for, and what that answers: one JSON value a line, the report last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from ratchet.bus.message import Value
from ratchet.core.contract.reward import RewardFunction


class RewardCommand(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The request, on standard input."""

    command: Literal["recompute", "accept", "judges"]
    function: RewardFunction | None = None
    """Which one to recompute or accept."""
    since: datetime | None = None
    """Trajectories that were stored since then."""
    role: str | None = None
    """None: every role."""
    asks: bool = True
    """Whether judges are asked about trajectories that they have not judged."""


class Progress(Value, frozen=True, kw_only=True, tag="progress"):
    """How far it is."""

    done: int
    total: int
    what: str


class Failure(Value, frozen=True, kw_only=True, tag="failure"):
    """Why it ends without a report."""

    message: str
    passing: bool
    """Whether something was away: later it may work."""


class Change(Value, frozen=True, kw_only=True):
    """One trajectory whose total changes."""

    role: str
    trajectory_id: str
    before: float
    after: float
    components: dict[str, tuple[float | None, float | None]]
    """The scores that changed, before and after; None: it did not apply."""


class Comparison(Value, frozen=True, kw_only=True):
    """Totals under a function against those that count now, of the same trajectories."""

    role: str
    trajectories: int
    before: float
    after: float
    """Means."""
    low: float
    high: float
    """The 95 % interval of the mean difference; trajectories are taken as independent."""
    changed: int
    rank_correlation: float | None
    """Spearman's; None where all totals of one side are equal, or there are fewer than two."""


class JudgeReport(Value, frozen=True, kw_only=True):
    """A judge, and how far people agree with it."""

    role: str
    """Whose judge it is, as settings name it."""
    model: str
    digest: str
    rubric_digest: str
    judged: int
    """Trajectories that it has judged, of those that were looked at."""
    labels: int
    agreed: int
    kappa: float | None
    low: float
    high: float
    calibrated: bool
    """Whether enough people agree with it, by these labels."""
    counts: bool
    """Whether it has weight: in the function that was recomputed, else in the one that is in force."""
    calls_today: int
    calls_per_day: int
    """Its budget."""
    usd_today: float
    usd_per_day: float | None


class Judged(Value, frozen=True, kw_only=True):
    """What became of the questions to judges."""

    asked: int = 0
    judged: int = 0
    no_verdict: int = 0
    over_budget: int = 0
    """Not asked: the budget of the day had no room."""
    failed: int = 0
    """The judge did not answer."""


class Recomputed(Value, frozen=True, kw_only=True, tag="recomputed"):
    """The report of a recomputation."""

    function: RewardFunction
    digest: str
    since: datetime
    trajectories: int
    unrewarded: int
    """Stored, and not rewarded yet: left out."""
    judged: Judged
    judges: Sequence[JudgeReport]
    comparisons: Sequence[Comparison]
    """One for each role, the one with the most trajectories first."""
    changes: Sequence[Change]
    """The largest."""
    note: str | None = None


class Accepted(Value, frozen=True, kw_only=True, tag="accepted"):
    """The report of an acceptance."""

    function: RewardFunction
    digest: str
    published: int
    present: int
    """Rewarded by this function already."""
    revised: int
    """Of those published: computed anew, as opinions came after the recomputation."""
    left: int
    """Trajectories since then that still have the reward of another function."""


class Judges(Value, frozen=True, kw_only=True, tag="judges"):
    """The judges that settings name."""

    judges: Sequence[JudgeReport]


Line = Progress | Failure | Recomputed | Accepted | Judges
"""A line on standard output."""

PROGRAM = "ratchet.reward_computer.command"
"""The module that runs a command."""

LINES = msgspec.json.Decoder(Line)
