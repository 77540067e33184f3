"""What every export has in common: which rows are chosen, and how a kind makes records of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.core.contract import Reward
from ratchet.core.stores.history import latest_rewards

Record = dict[str, Any]
"""One line of an export; `Any` because each member has its own type. Times are datetimes, the rest is JSON."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows. Times are those at which a trajectory ended, or a reward was computed."""

    role: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_reward: float | None = None
    """Only what is worth at least this much; what has no reward yet is left out then."""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of export."""

    summary: str
    """What it holds, for `ratchet export --help`."""
    table: str
    time: str
    """The column that rows are ordered and chosen by, newest first."""
    key: str
    """The column that tells rows of one instant apart."""
    worth: str
    """`Selection.min_reward` as a condition on a row, with the parameter `min_reward`."""
    rewarded: bool
    """Whether a record is made with the newest reward of its trajectory."""
    record: Callable[[bytes, Reward | None], Record | None]
    """Makes a record of a message's body; None leaves the message out."""
    columns: Mapping[str, str]
    """Columns of the Parquet file: name -> `text`, `number`, `integer`, `flag`, `time` or `json`."""
    settle: Callable[[Sequence[Record]], tuple[list[Record], Counter[str]]] | None = None
    """Makes the file's records of all that were made, and counts by reason those that it leaves out."""
    unanswered: Callable[[bytes, bytes], Record] | None = None
    """Makes a record of a run whose every call failed, from its first and its last turn; None leaves such runs out."""


REWARDED = (
    f"(role, trajectory_id) IN (SELECT role, trajectory_id FROM {latest_rewards('total', where='')}"  # noqa: S608 - our own names
    " WHERE total >= {min_reward:Float64})"
)
"""Condition on a trajectory: its newest reward is high enough."""
