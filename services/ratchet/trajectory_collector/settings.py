"""Settings of the collector, and what tests alone change of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import ServiceSettings

MOST_DAYS = 18_250
"""50 years: ClickHouse's instants end in 2106."""
OTHERS = "*"
"""All roles that have no entry of their own."""
RoleOrOthers = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z0-9_-]{1,64})$")]


class DaysKept(BaseModel):
    """How long what a role's agents and people said is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hot: int = Field(default=30, ge=8, le=MOST_DAYS)
    """Trajectories and turns in ClickHouse: longer than streams hold turns, and silent trajectories are looked for."""
    archived: int = Field(default=90, ge=0, le=MOST_DAYS)
    """And then in the archive."""
    labels: int = Field(default=365, ge=8, le=MOST_DAYS)
    """Feedback, preferences and rewards."""

    @property
    def whole(self) -> int:
        """Days until a trajectory is gone."""
        return min(self.hot + self.archived, MOST_DAYS)


class Settings(ServiceSettings):
    """Read from `RATCHET_COLLECTOR_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_COLLECTOR_", frozen=True)

    linger_s: float | None = None
    """How long an insert waits for more messages, where that differs from `contracts/topics.json`: ClickHouse likes
    few, large parts."""
    absent_readers: list[str] = Field(default_factory=list)
    """JSON: services, consumers or projections that this installation does not run. A reader that `topics.json`
    declares and that never began needs every message: unless it is listed here, its streams are not trimmed."""
    idle_s: float = 600.0
    """A trajectory without an end is assembled after this long without a further turn."""
    idle_s_by_role: dict[str, float] = Field(default_factory=dict)
    """JSON: the roles whose trajectories wait longer or shorter for their end, `{"helpdesk": 60}`."""
    final_tools: dict[str, list[str]] = Field(default_factory=dict)
    """JSON: by role the tools with which its agents hand in a result, `{"coder": ["submit"], "*": ["final_answer"]}`. A
    run without a reported outcome whose last call calls one is a success, until an agent reports one."""
    failure_by_error: bool = True
    """A run without a reported outcome whose last call failed is a failure, until an agent reports one; not where no
    server took that call."""
    refuse_unredacted: bool = False
    """Whether a message of people's and agents' words that no client, gateway or service of Ratchet has redacted is a
    dead letter; else the collector redacts it, and stores it."""
    facts_ttl_days: int = Field(default=1095, ge=0, le=MOST_DAYS)
    """Rows without words of people and agents (calls, trainings, deployments, rollouts) go this long after they were
    stored; 0 keeps them for ever."""
    retention: Mapping[RoleOrOthers, DaysKept] = Field(default_factory=dict)
    """JSON: by role (`*` for all others), how many days its trajectories and turns stay in ClickHouse (`hot`, 30) and
    then in the archive (`archived`, 90), and its feedback, preferences and rewards (`labels`, 365):
    `{"support": {"hot": 14, "archived": 0}}`."""

    @property
    def days_kept(self) -> dict[str, DaysKept]:
        """`retention` with `*`, from which every role takes what it leaves open."""
        others = self.retention.get(OTHERS, DaysKept())
        own = {role: days.model_dump(exclude_unset=True) for role, days in self.retention.items()}
        return {OTHERS: others, **{role: others.model_copy(update=days) for role, days in own.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Bounds and intervals that no installation has had to change; tests pass shorter ones."""

    batch: int | None = None
    """Most messages in one insert, where that differs from `contracts/topics.json`."""
    ack_wait_s: float | None = None
    """The broker redelivers after this long without a sign of life, where that differs from `contracts/topics.json`."""
    assembly_patience_s: float = 60.0
    """The end of a trajectory waits this long for its turns, counted from the first query that ClickHouse answered;
    then it is assembled from those that did arrive. An outage of ClickHouse stops the clock."""
    audit_interval_s: float = 5.0
    """How often the audit compares the ledger with the broker's ack floor, and with the rows in ClickHouse."""
    audit_window: int = 16_384
    """Sequences that the audit compares at a time. An installation keeps its first value, which numbers the windows."""
    audit_windows_per_tick: int = 16
    """Most windows of a stream in one audit."""
    restore_per_tick: int = 10_000
    """Most messages of a stream that one audit reads again: a large restore must not hold up the others."""
    trim_above: float = 0.8
    """The collector trims a stream that refuses messages when it is full, once it is fuller than this share of its
    bound, in messages or in bytes. It removes only messages that every reader has read."""
    trim_to: float = 0.6
    """The share to which a stream is trimmed."""
    trim_keep_s: float = 3600.0
    """Messages younger than this are never trimmed."""
    fill_alarm_above: float = 0.85
    """A stream that is fuller than this although it was trimmed raises an alert, which names the blocking reader."""
    assembly_turns: int = 10_000
    """Most turns of one trajectory id that are assembled, the oldest ones; the collector counts and logs the others."""
    assembly_bytes: int = 256 * 1024 * 1024
    """Most bytes of them."""
    idle_interval_s: float = 30.0
    """How often the collector searches for idle trajectories."""
    traces_interval_s: float = 10.0
    """How often the collector searches for traces that are over."""
    erasure_interval_s: float = 2.0
    """How often the collector looks for erasures."""
    erasure_settle_s: float = 90.0
    """An erasure is looked through again after this long: longer than an insert may wait for ClickHouse."""
    idle_lookback_s: float = 7 * 86400.0
    """A collector that starts searches for idle trajectories and traces this far back: streams keep turns and spans no
    longer."""
