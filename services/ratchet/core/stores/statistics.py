"""Statistics of trajectories and calls in one window of time, grouped by what they have in common.

Trajectories count where they ended, by their newest report and their newest reward; calls where they were made, each
once however often its message came. Both are grouped by the same names: a call has the agent, domain, profile, source
and outcome of the trajectory that it belongs to, and a trajectory the model, API and key of its first call. So the sums
are the same whatever they are grouped by.

One query reads both tables once, and only their window: a projection orders trajectories by when they ended, and calls
lie in the order of their hours. Its result is bounded: `GROUPS` groups, the others as one, and `BUCKETS` of time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ratchet.core.contract.http.statistics import GroupOut, PointOut, Quantiles, StatisticsOut
from ratchet.core.errors import BadRequest, WarehouseTooSlow
from ratchet.core.rules.arms import PINNED
from ratchet.core.rules.intervals import mean_interval
from ratchet.core.stores.trajectory_search import NAME, NO_OUTCOME, OPEN, SKEW, instant, millis

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse

Every = Literal["hour", "day", "week"]

WIDTHS: Mapping[str, timedelta] = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}
MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
"""The beginning of a week, a day and an hour."""
BUCKETS = 200
"""Of time, at most: what a chart can show."""
AUTO_BUCKETS = 100
"""The narrowest width that makes no more than so many is taken where none is asked for."""
GROUPS = 50
"""Groups at most: what a person reads."""
LATE = timedelta(days=1)
"""A trajectory that was reported again may stand so far from where its first report put it."""
LONGEST_S = 9
"""How long the query may run: a person waits no longer."""
LIMITS = f"SETTINGS max_execution_time = {LONGEST_S}, max_bytes_before_external_group_by = 500000000"


class Named(NamedTuple):
    """Its source: of trajectories `t` with their first call `c`; of calls `c` with their trajectory `t`."""

    of_trajectory: str
    of_call: str


DIMENSIONS: Mapping[str, Named] = {
    "role": Named("t.role", "c.role"),
    "agent": Named("t.agent", "t.agent"),
    "domain": Named("t.domain", "t.domain"),
    "model": Named("if(c.model != '', c.model, t.model)", "c.model"),
    "policy": Named(
        "if(t.version < 0, '', concat(t.role, '@', toString(t.version)))",
        "concat(c.role, '@', toString(c.policy_version))",
    ),
    "arm": Named("t.arm", "c.arm"),
    "profile": Named("t.profile", "t.profile"),
    "source": Named("t.source", "t.source"),
    "outcome": Named("t.outcome", "t.outcome"),
    "api": Named("c.api", "c.api"),
    "key": Named("c.key_id", "c.key_id"),
}
"""What trajectories and calls are grouped by, and filtered: the names of the filters of the list of trajectories."""
_KNOWN = ", ".join(DIMENSIONS)
_FILTERED: Mapping[str, Named] = {
    **DIMENSIONS,
    "policy": Named("toString(t.version)", "toString(c.policy_version)"),
}
"""A policy is asked for by its version, as in the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsQuery:
    """What is asked for. Raises `BadRequest` for unknown names, and for a window that ends before it begins or has too
    many buckets."""

    since: datetime
    until: datetime
    """Itself excluded."""
    every: Every | None = None
    """None: the narrowest with at most `AUTO_BUCKETS`."""
    by: Sequence[str] = ()
    """Names of `DIMENSIONS`."""
    only: Mapping[str, str] = field(default_factory=dict[str, str])
    """The values that pass, by such names; of `policy` a version, of `outcome` also `none`."""
    evaluation: bool = False
    """False: without runs and calls that asked for a version by name, unless `arm` asks for them."""
    within: str | None = None
    """A regular expression of the roles that pass."""

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise BadRequest("the window ends before it begins", param="until")
        if len(set(self.by) & set(DIMENSIONS)) != len(self.by) or len(self.by) > 2:
            raise BadRequest(f"{','.join(self.by)!r}: group by one or two different of {_KNOWN}", param="by")
        if self.every is not None and self.buckets_of(self.every) > BUCKETS:
            raise BadRequest(
                f"the window has {self.buckets_of(self.every):,} buckets of one {self.every}, more than {BUCKETS}:"
                " take a wider bucket, or a shorter window",
                param="every",
            )
        if self.buckets_of("week") > BUCKETS:
            raise BadRequest(f"the window is longer than {BUCKETS} weeks", param="since")

    def buckets_of(self, every: Every) -> int:
        """How many buckets of a width the window touches."""
        width = WIDTHS[every]
        return (self.until - MONDAY - timedelta(milliseconds=1)) // width - (self.since - MONDAY) // width + 1

    @property
    def width(self) -> Every:
        """The width of the buckets."""
        fitting = (every for every in get_args(Every) if self.buckets_of(every) <= AUTO_BUCKETS)
        return self.every or next(fitting, "week")


_TRAJECTORIES = """
SELECT key, role, newest.1 AS at, newest.2 AS agent, newest.3 AS domain, newest.4 AS model, newest.5 AS profile,
    newest.6 AS source, newest.7 AS outcome, newest.8 AS version, newest.9 AS arm, cityHash64(role, newest.10) AS run
FROM (
    SELECT {key} AS key, role, argMax(
        (ended_at, leftUTF8(agent_id, {name}), leftUTF8(ifNull(domain, ''), {name}), leftUTF8(toString(model), {name}),
            leftUTF8(ifNull(subordinate_profile, ''), {name}), toString(source), coalesce(outcome, '{none}'),
            ifNull(toInt64(policy_version), -1), ifNull(arm, ''), recorded_as), {newest}
    ) AS newest
    FROM trajectories WHERE ended_at >= {low} AND ended_at < {high}{of_role}
    GROUP BY role, key
)
"""
"""Keys are hashes: a window of 20 million has two that are equal once in a hundred thousand times."""
_REWARDS = """
SELECT cityHash64(role, trajectory_id) AS key, argMax((total, coalesce(confidence, 1)), (at, revision)) AS newest
FROM rewards WHERE ingested_at >= {low}{of_role} GROUP BY key
"""
_FIRST_CALLS = """
SELECT run, first.1 AS model, first.2 AS api, first.3 AS key_id
FROM (
    SELECT cityHash64(role, trajectory_id) AS run,
        argMin((toString(model), toString(api), toString(key_id)), at) AS first
    FROM calls WHERE {within}{of_role} GROUP BY run
)
"""
_CALLS = "SELECT *, cityHash64(role, trajectory_id) AS run FROM calls FINAL WHERE {within}{of_role}"
_NO_CALL = (
    "false AS failed, false AS cancelled, 0 AS prompt_tokens, 0 AS cached_tokens, 0 AS completion_tokens,"
    " 0 AS reasoning_tokens, NULL AS cost_usd, NULL AS latency_ms, NULL AS first_token_ms"
)
_CALL = (
    "c.failed, c.cancelled, c.prompt_tokens, c.cached_tokens, c.completion_tokens, c.reasoning_tokens, c.cost_usd,"
    " if(c.failed OR c.cancelled, NULL, c.latency_ms), c.first_token_ms"
)
_BUCKET = "intDiv(toUnixTimestamp64Milli({at}) - {{origin:Int64}}, {{width:Int64}})"
_QUANTILES = "0.5, 0.95, 0.99"
_SUMS = (
    *("trajectories", "outcomes", "successes", "rewarded", "reward_sum", "calls", "errors", "cancelled"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_usd", "unpriced"),
)
_BASE = f"""
SELECT r.grouped AS grouped, r.bucket AS bucket, countIf(NOT r.is_call) AS trajectories,
    countIf(r.outcome NOT IN ('', '{NO_OUTCOME}')) AS outcomes, countIf(r.outcome = 'success') AS successes,
    count(r.reward) AS rewarded, sum(ifNull(r.reward, 0)) AS reward_sum,
    varSampStableState(r.reward) AS reward_variance, countIf(r.is_call) AS calls, countIf(r.failed) AS errors,
    countIf(r.cancelled) AS cancelled, sum(r.prompt_tokens) AS prompt_tokens, sum(r.cached_tokens) AS cached_tokens,
    sum(r.completion_tokens) AS completion_tokens, sum(r.reasoning_tokens) AS reasoning_tokens,
    sum(ifNull(r.cost_usd, 0)) AS cost_usd, countIf(r.is_call AND r.cost_usd IS NULL) AS unpriced,
    quantilesTDigestState({_QUANTILES})(r.latency_ms) AS latency,
    quantilesTDigestState({_QUANTILES})(r.first_token_ms) AS first_token
FROM ({{rows}}) AS r
GROUP BY grouped, bucket
"""  # noqa: S608 - our own names
_BOUNDED = f"""
SELECT if(place > {GROUPS}, [], grouped) AS names, place > {GROUPS} AS is_other, bucket,
    grouping(names) = 0 AS is_group, grouping(bucket) = 0 AS is_point,
    uniqExactIf(grouped, place > {GROUPS}) AS others, max(of_group) AS size,
    {", ".join(f"sum(b.{name}) AS {name}" for name in _SUMS)},
    varSampStableMerge(b.reward_variance) AS reward_variance,
    quantilesTDigestMerge({_QUANTILES})(b.latency) AS latency,
    quantilesTDigestMerge({_QUANTILES})(b.first_token) AS first_token
FROM (
    SELECT *, dense_rank() OVER (ORDER BY of_group DESC, grouped) AS place
    FROM (
        SELECT *, (sum(trajectories) OVER (PARTITION BY grouped), sum(calls) OVER (PARTITION BY grouped)) AS of_group
        FROM ({_BASE})
    )
) AS b
GROUP BY GROUPING SETS ((names, is_other, bucket), (names, is_other), (bucket), ())
ORDER BY size DESC, names, bucket
{LIMITS}
"""  # noqa: S608 - as above


async def statistics(warehouse: Warehouse, asked: StatisticsQuery) -> StatisticsOut:
    """Raises `WarehouseTooSlow` where the window holds more than can be read in `LONGEST_S`."""
    width = WIDTHS[asked.width]
    origin = MONDAY + (asked.since - MONDAY) // width * width
    parameters = {
        "since": millis(asked.since),
        "until": millis(asked.until),
        "origin": millis(origin),
        "width": round(width.total_seconds() * 1000),
        **{f"only_{name}": value for name, value in asked.only.items()},
        **({"within": asked.within} if asked.within is not None else {}),
    }
    try:
        rows = await warehouse.rows(_BOUNDED.replace("{rows}", _rows_of(asked)), parameters)
    except WarehouseTooSlow as error:
        raise WarehouseTooSlow(
            f"the window holds more than ClickHouse adds up in {LONGEST_S} s: ask for a shorter one, or for one role"
        ) from error
    points: dict[tuple[bool, bool, tuple[str, ...]], list[PointOut]] = defaultdict(list)
    groups: list[tuple[Row, tuple[bool, bool, tuple[str, ...]]]] = []
    for row in rows:
        place = (bool(row["is_group"]), bool(row["is_group"] and row["is_other"]), tuple(row["names"]))
        if row["is_point"]:
            points[place].append(PointOut(at=origin + row["bucket"] * width, **_measures(row)))
        else:
            groups.append((row, place))
    made = {
        place: GroupOut(names=[name or None for name in row["names"]], points=points[place], **_measures(row))
        for row, place in groups
    }
    (everything,) = [row for row, (is_group, _, _) in groups if not is_group]
    return StatisticsOut(
        since=asked.since,
        until=asked.until,
        every=asked.width,
        by=list(asked.by),
        evaluation=asked.evaluation or "arm" in asked.only,
        total=made.pop((False, False, ())),
        other=made.pop((True, True, ()), None),
        groups=list(made.values()) if asked.by else [],
        others=everything["others"],
    )


def _rows_of(asked: StatisticsQuery) -> str:
    """A row for each trajectory and each call of the window: what it is grouped by, when, and its figures."""
    of_trajectories, of_calls = _names(asked, 0), _names(asked, 1)
    of_role = " AND role = {only_role:String}" if "role" in asked.only else ""
    of_role += " AND match(role, {within:String})" if asked.within is not None else ""
    since, until = instant("since"), instant("until")
    day, days = f"INTERVAL {LATE.days} DAY", f"INTERVAL {OPEN.days} DAY"
    by_id = {"key": "cityHash64(role, trajectory_id)", "newest": "ingested_at"}
    by_run = {"key": "cityHash64(role, recorded_as)", "newest": "(trajectory_id = recorded_as, ingested_at)"}
    ended = {"low": f"{since} - {day}", "of_role": of_role, "none": NO_OUTCOME, "name": NAME}
    trajectories = _TRAJECTORIES.format(high=f"{until} + {day}", **by_id, **ended)
    runs = _TRAJECTORIES.format(high=f"{until} + {days}", **by_run, **ended)
    rewards = _REWARDS.format(low=f"{since} - INTERVAL {SKEW.days} DAY", of_role=of_role)
    first_calls = _FIRST_CALLS.format(within=_hours("at", f"{since} - {day}", until), of_role=of_role)
    return f"""
    SELECT false AS is_call, {of_trajectories.grouped} AS grouped, {_BUCKET.format(at="t.at")} AS bucket,
        t.outcome AS outcome, if(w.newest.2 > 0, w.newest.1, NULL) AS reward, {_NO_CALL}
    FROM ({trajectories}) AS t LEFT JOIN ({rewards}) AS w ON w.key = t.key
        {f"LEFT JOIN ({first_calls}) AS c ON c.run = t.run" if of_trajectories.joins("c.") else ""}
    WHERE t.at >= {since} AND t.at < {until}{of_trajectories.where}
    UNION ALL
    SELECT true, {of_calls.grouped}, {_BUCKET.format(at="c.at")}, '', NULL, {_CALL}
    FROM ({_CALLS.format(within=_hours("at", since, until), of_role=of_role)}) AS c
        {f"LEFT JOIN ({runs}) AS t ON t.key = c.run" if of_calls.joins("t.") else ""}
    WHERE true{of_calls.where}
    """  # noqa: S608 - our own names


def _hours(at: str, since: str, until: str) -> str:
    """The condition on a column of calls, which are ordered by hours."""
    hour = f"toStartOfHour({at})"
    return f"{at} >= {since} AND {at} < {until} AND {hour} >= toStartOfHour({since}) AND {hour} <= {until}"


@dataclass(frozen=True, slots=True)
class _Selection:
    """By what rows of one table are grouped, and the condition that they must fulfil."""

    grouped: str
    where: str

    def joins(self, alias: str) -> bool:
        return alias in self.grouped + self.where


def _names(asked: StatisticsQuery, table: Literal[0, 1]) -> _Selection:
    """`table`: 0 for trajectories, 1 for calls."""
    grouped = ", ".join(f"leftUTF8(toString({DIMENSIONS[name][table]}), {NAME})" for name in asked.by)
    conditions = [
        f" AND leftUTF8(toString({_FILTERED[name][table]}), {NAME}) = leftUTF8({{only_{name}:String}}, {NAME})"
        for name in asked.only
    ]
    if not asked.evaluation and "arm" not in asked.only:
        conditions.append(f" AND {DIMENSIONS['arm'][table]} != '{PINNED}'")
    return _Selection(f"[{grouped}]::Array(String)", "".join(conditions))


def _measures(row: Row) -> dict[str, Any]:
    """The members of `MeasuresOut`; of any type, as each has its own."""
    sums = {name: row[name] for name in _SUMS if name != "reward_sum"}
    rewarded, outcomes = row["rewarded"], row["outcomes"]
    mean = row["reward_sum"] / rewarded if rewarded else None
    return {
        **sums,
        "success_share": row["successes"] / outcomes if outcomes else None,
        "mean_reward": mean,
        "reward_interval": mean_interval(mean, row["reward_variance"], rewarded) if mean is not None else None,
        "latency_ms": _quantiles(row["latency"]),
        "first_token_ms": _quantiles(row["first_token"]),
    }


def _quantiles(values: Sequence[float]) -> Quantiles | None:
    """The three quantiles; None for those of nothing, which are NaN."""
    p50, p95, p99 = values
    return None if p50 != p50 else (p50, p95, p99)  # noqa: PLR0124 - only NaN differs from itself
