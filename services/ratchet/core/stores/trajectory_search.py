"""Searches of trajectories, newest first: of those that ended, and of those that have calls and no end yet.

Time is when a trajectory ended; of an open one, when its last call was made. Newer windows of time are read before
older ones, each eight times as long as the one before: a page costs what its rows cost, and a filter that few pass
costs one reading of narrow columns in all (ADR 74). Candidates are then compared with the rows that count (`FINAL`), by
their keys alone: a trajectory that was reported again stands where its newest report puts it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ratchet.core.rules.arms import PINNED
from ratchet.core.stores.history import latest_rewards, parts
from ratchet.core.stores.warehouse import Texts, one_pair_of

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse

OPEN = timedelta(days=7)
"""A trajectory without an end is open for this long after a call; its calls are looked for this long before its end."""
SKEW = timedelta(days=1)
"""By this much an agent's clock may be ahead of the server's: what is stored is stored after it happened."""
LATE_MS = 3_600_000
"""By this much the clocks of the gateway and of the collector may differ."""
FIRST_WINDOW_MS = 6 * 3_600_000
GROWTH = 8
TEXT_S = 2.0
"""How long texts are read, by a page and by each of its queries, before a page says how far it came."""
WITHIN_TIME = f" SETTINGS max_execution_time = {TEXT_S}"
ALONE = " SETTINGS max_execution_time = 8"
"""For the texts of a single trajectory, which a page cannot do without. A command waits 10 s for an answer."""
TEXT_BYTES = 16_000_000
"""Bodies that are searched together; a larger one alone: ClickHouse looks at the time only between bodies."""
WORDS = 16
"""Words of a text that count."""
NAME = 200
"""Characters of a name that are shown, and compared: agents and telemetry may send a megabyte."""
NO_OUTCOME = "none"
EARLIEST_MS, LATEST_MS = -2_208_988_800_000, 10_413_791_999_999
"""The bounds of ClickHouse's instants: the years 1900 and 2299."""

State = Literal["open", "ended", "all"]


@dataclass(frozen=True, slots=True)
class TrajectoryFilter:
    """Which trajectories; None means all."""

    role: str | None = None
    within: str | None = None
    """A regular expression of the roles that pass."""
    version: int | None = None
    """Of the policy."""
    arm: str | None = None
    outcome: str | None = None
    """`none`: without one."""
    source: str | None = None
    agent: str | None = None
    domain: str | None = None
    model: str | None = None
    """One that answered a call of it; without calls, the one that its agent reported."""
    profile: str | None = None
    """Of a subordinate agent."""
    reward_min: float | None = None
    reward_max: float | None = None
    reason: str | None = None
    """Keeps at least one of its calls from policy gradients."""
    text: str | None = None
    """Words, each of which stands somewhere in the conversation, but for the system prompt of an ended one."""
    since: datetime | None = None
    until: datetime | None = None
    state: State = "all"
    evaluation: bool = True
    """False: without runs whose calls asked for a version by name, unless `arm` asks for them."""

    @property
    def words(self) -> dict[str, str]:
        """The words of `text`, as JSON writes them, by the names of their parameters."""
        words = (self.text or "").split()[:WORDS]
        return {f"word{n}": msgspec.json.encode(word).decode()[1:-1] for n, word in enumerate(words)}

    @property
    def of_role(self) -> str:
        """The condition on the role of a row of any table; its parameters are `role` and `within`."""
        given = (("role = {role:String}", self.role), ("match(role, {within:String})", self.within))
        return "".join(f" AND {condition}" for condition, value in given if value)

    @property
    def leaves_out_pinned(self) -> bool:
        """Whether evaluation runs do not pass."""
        return not self.evaluation and self.arm is None

    @property
    def has_open(self) -> bool:
        """Whether an open trajectory can pass."""
        of_ended = (self.source, self.domain, self.profile, self.reward_min, self.reward_max)
        return self.state != "ended" and self.outcome in (None, NO_OUTCOME) and all(given is None for given in of_ended)


class Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A trajectory's place in the list: its time in milliseconds, then its names."""

    at: int
    trajectory_id: str
    role: str

    @property
    def key(self) -> tuple[str, str]:
        return self.role, self.trajectory_id


FIRST = Place(LATEST_MS, "\U0010ffff", "")
"""The place before all of them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of the list, with the id under which its calls were recorded."""

    place: Place
    recorded_as: str
    row: Row
    """Columns of `trajectories`; empty for an open one."""


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time in milliseconds, `high` excluded."""

    low: int
    high: int
    is_last: bool


class Search(Protocol):
    """A search; `reads_texts` says whether it has to read whole messages."""

    reads_texts: bool

    def windows(self, after: Place) -> AsyncIterator[Window]:
        """The windows of time to search, newest first."""
        ...

    async def candidates(self, window: Window, after: Place, most: int) -> list[Place]:
        """The first places of a window after a place, of trajectories that pass, texts apart."""
        ...

    async def sizes(self, places: Sequence[Place]) -> dict[tuple[str, str], int]:
        """Bytes of the bodies that `passing` searches, by the keys of candidates. Raises `WarehouseTooSlow`."""
        ...

    async def passing(self, places: Sequence[Place]) -> list[Listed]:
        """Those of the candidates that count. Raises `WarehouseTooSlow` where their texts take too long."""
        ...


def instant(name: str) -> str:
    """A parameter in milliseconds as an instant of ClickHouse."""
    return f"fromUnixTimestamp64Milli({{{name}:Int64}}, 'UTC')"


def _cut(column: str) -> str:
    return f"leftUTF8({column}, {NAME}) AS {column}"


def _named(column: str, parameter: str) -> str:
    """The condition that a column holds a name, as `ENDED` cuts it."""
    return f"leftUTF8({column}, {NAME}) = leftUTF8({{{parameter}:String}}, {NAME})"


_AGENT = "JSONExtractString(body, 'agent_id')"
"""Of a call."""
OF_KEYS = "(role, trajectory_id) IN {keys:Array(Tuple(String, String))}"
_BEFORE = "({at}, trajectory_id, role) < ({{at:Int64}}, {{id:String}}, {{of:String}})"
_NEWEST_FIRST = "ORDER BY place DESC, trajectory_id DESC, role DESC LIMIT {most:UInt32}"

_SPAN = f"""
SELECT count() AS stored,
    toUnixTimestamp64Milli(min(ended_at)) AS oldest, toUnixTimestamp64Milli(max(ended_at)) AS newest
FROM trajectories WHERE ended_at >= {instant("first")} AND ended_at <= {instant("last")}
"""  # noqa: S608 - our own names
_CANDIDATES = f"""
SELECT role, trajectory_id, toUnixTimestamp64Milli(ended_at) AS place FROM trajectories
WHERE ended_at >= {instant("low")} AND ended_at < {instant("high")}
    AND {_BEFORE.format(at="toUnixTimestamp64Milli(ended_at)")}
"""  # noqa: S608 - as above
ENDED = f"""
SELECT * FROM (
    SELECT role, trajectory_id, recorded_as, source, turn_count, policy_version, arm, outcome, started_at, ended_at,
        toUnixTimestamp64Milli(ended_at) AS place, {_cut("agent_id")}, {_cut("task_id")}, {_cut("domain")},
        {_cut("model")}, {_cut("subordinate_profile")}
    FROM trajectories WHERE {OF_KEYS} ORDER BY ingested_at DESC LIMIT 1 BY role, trajectory_id
) WHERE true
"""  # noqa: S608 - as above
"""The newest report of each: with so few keys cheaper than `FINAL`, which reads what lies around them."""
REWARDED = latest_rewards(
    "total", "confidence", "revision", where="role IN {roles:Array(String)} AND trajectory_id IN {ids:Array(String)}"
)
_OF_PLACES = one_pair_of("role, trajectory_id", "keys")
_QUOTED = (
    "'observation', 'content'",
    "'action', 'raw_response'",
    "'action', 'tool_name'",
    "'action', 'tool_args'",
    "'result', 'output'",
    "'result', 'error'",
)
"""What an entry of a trajectory holds of the conversation."""
_ENTRIES = (
    "replaceAll(arrayStringConcat(arrayMap(e -> concat("
    + ", ' ', ".join(f"JSONExtractRaw(e, {part})" for part in _QUOTED)
    + "), JSONExtractArrayRaw(body, 'turns')), ' '), '\\\\/', '/')"
)
_CALL = "replaceAll(concat(JSONExtractRaw(body, 'messages'), ' ', JSONExtractRaw(body, 'response')), '\\\\/', '/')"

_OPEN_SINCE = f"""
SELECT role, trajectory_id, toUnixTimestamp64Milli(max(at)) AS place FROM turns
WHERE ingested_at >= {instant("since")}
    AND (role, trajectory_id) NOT IN (
        SELECT role, recorded_as FROM trajectories WHERE ingested_at >= {instant("since")}
    )
"""  # noqa: S608 - as above
CALLED = f"""
SELECT role, trajectory_id, toUnixTimestamp64Milli(max(at)) AS place FROM turns WHERE {OF_KEYS}
GROUP BY role, trajectory_id
"""  # noqa: S608 - as above


class EndedSearch:
    """Of trajectories with an end."""

    def __init__(self, warehouse: Warehouse, asked: TrajectoryFilter) -> None:
        self.reads_texts = bool(asked.words)
        self._warehouse = warehouse
        self._asked = asked
        self._columns, parameters = _of_columns(asked)
        others, more = _of_other_tables(asked)
        self._where = "".join(f" AND {column}" for column in (*self._columns, *others))
        self._parameters = {**parameters, **more, **_bounds(asked)}

    async def windows(self, after: Place) -> AsyncIterator[Window]:
        """From the newest trajectory to the oldest."""
        bounds = {**self._parameters, "last": min(after.at, self._parameters["last"])}
        (span,) = await self._warehouse.rows(_SPAN + self._asked.of_role, bounds)
        if span["stored"]:
            for window in windows(span["oldest"], span["newest"] + 1):
                yield window

    async def candidates(self, window: Window, after: Place, most: int) -> list[Place]:
        """See `Search`."""
        bounds = {
            "low": window.low,
            "high": window.high,
            "stored_since": window.low - _ms(SKEW),
            "called_since": window.low - _ms(OPEN),
            "most": most,
        }
        rows = await self._warehouse.rows(
            f"{_CANDIDATES}{self._where} {_NEWEST_FIRST}", {**self._parameters, **_after(after), **bounds}
        )
        return [place_of(row) for row in rows]

    async def sizes(self, places: Sequence[Place]) -> dict[tuple[str, str], int]:
        """See `Search`."""
        return await _sizes(self._warehouse, "trajectories", places)

    async def passing(self, places: Sequence[Place]) -> list[Listed]:
        """See `Search`."""
        texts = [*_texts(self._asked, _ENTRIES)]
        if texts and places:
            quoting = await self._quoting(places, texts)
            places = [place for place in places if place.key in quoting]
        own = "".join(f" AND {condition}" for condition in self._columns)
        standing = set(places)
        rows: list[Listed] = []
        for part in parts([place.key for place in places]):
            stored = await self._warehouse.rows(ENDED + own, {**self._parameters, **of_keys(part)})
            rows += [row for row in map(ended_row, stored) if row.place in standing]
        return await self._rewarded(rows)

    async def _quoting(self, places: Sequence[Place], texts: Sequence[str]) -> set[tuple[str, str]]:
        """The keys of those candidates whose bodies hold the words: each body is read once."""
        sql = f"SELECT role, trajectory_id FROM trajectories WHERE {_OF_PLACES} AND {' AND '.join(texts)}"  # noqa: S608 - our own names
        rows = await self._warehouse.rows(f"{sql}{_bound(places)}", {**self._parameters, **_of_places(places)})
        return {key_of(row) for row in rows}

    async def _rewarded(self, rows: list[Listed]) -> list[Listed]:
        """Those whose newest reward lies within the bounds: others had such a reward before it was revised."""
        low, high = self._asked.reward_min, self._asked.reward_max
        if low is None and high is None:
            return rows
        passing: set[tuple[str, str]] = set()
        for part in parts([row.place.key for row in rows]):
            for reward in await self._warehouse.rows(REWARDED, of_ids(part)):
                total = reward["total"]
                if reward["confidence"] and (low is None or total >= low) and (high is None or total <= high):
                    passing.add((reward["role"], reward["trajectory_id"]))
        return [row for row in rows if row.place.key in passing]


class OpenSearch:
    """Of trajectories with calls in the last days and without an end."""

    def __init__(
        self, warehouse: Warehouse, asked: TrajectoryFilter, now: datetime, down_to: int = EARLIEST_MS
    ) -> None:
        """`down_to`: older ones are not asked for."""
        self.reads_texts = bool(asked.words or asked.agent)
        self._warehouse = warehouse
        self._asked = asked
        bounds = _bounds(asked)
        self._span = (max(millis(now - OPEN), bounds["first"], down_to), min(millis(now + SKEW), bounds["last"]))
        self._parameters: dict[str, Any] = dict(asked.words)
        having = ["place >= {low:Int64}", "place < {high:Int64}", _BEFORE.format(at="place")]
        for name, value, condition in (
            ("version", asked.version, "countIf(policy_version = {version:UInt32}) > 0"),
            ("arm", asked.arm, "countIf(arm = {arm:String}) > 0"),
            ("model", asked.model, "countIf(provider_model = {model:String}) > 0"),
            (
                "reason",
                asked.reason,
                "countIf(reason = {reason:String} OR ({reason:String} = 'mixed' AND arm = 'mixed')) > 0",
            ),
        ):
            if value is not None:
                having.append(condition)
                self._parameters[name] = value
        if asked.leaves_out_pinned:
            having.append(f"countIf(arm = '{PINNED}') = 0")
        given = {"role": asked.role, "within": asked.within}
        self._parameters |= {name: value for name, value in given.items() if value}
        matching = f"{_OPEN_SINCE}{asked.of_role} GROUP BY role, trajectory_id HAVING {' AND '.join(having)}"
        self._sql = f"{matching} {_NEWEST_FIRST}"

    async def windows(self, after: Place) -> AsyncIterator[Window]:
        """Of the last days."""
        oldest, newest = self._span
        for window in windows(oldest, min(newest, after.at) + 1):
            yield window

    async def candidates(self, window: Window, after: Place, most: int) -> list[Place]:
        """See `Search`."""
        bounds = {"low": window.low, "high": window.high, "since": window.low - LATE_MS, "most": most}
        rows = await self._warehouse.rows(self._sql, {**self._parameters, **_after(after), **bounds})
        return [place_of(row) for row in rows]

    async def sizes(self, places: Sequence[Place]) -> dict[tuple[str, str], int]:
        """See `Search`."""
        return await _sizes(self._warehouse, "turns", places)

    async def passing(self, places: Sequence[Place]) -> list[Listed]:
        """See `Search`. One that ended longer ago, and was called since, is not open."""
        having = [f"max({text})" for text in _texts(self._asked, _CALL)]
        if self._asked.agent is not None:
            having.append(f"max({_named(_AGENT, 'agent')})")
        matching = f" HAVING {' AND '.join(having)}{_bound(places)}" if having else ""
        passing: set[tuple[str, str]] = set()
        for part in parts([place.key for place in places]):
            asked = {**self._parameters, **of_keys(part), "agent": self._asked.agent or ""}
            called = await self._warehouse.rows(CALLED + matching, asked) if having else []
            passing |= {key_of(row) for row in called} if having else set(part)
            passing -= {key_of(row) for row in await self._warehouse.rows(ENDED, asked)}
        return [Listed(place, place.trajectory_id, {}) for place in places if place.key in passing]


def windows(oldest: int, high: int) -> Iterator[Window]:
    """The windows from below `high` down to `oldest`, each longer than the one before."""
    width = FIRST_WINDOW_MS
    while high > oldest:
        low = max(oldest, high - width)
        yield Window(low, high, low <= oldest)
        high, width = low, width * GROWTH


def _of_columns(asked: TrajectoryFilter) -> tuple[list[str], dict[str, Any]]:
    """Conditions on columns of `trajectories`, and their parameters."""
    columns = {
        "role": (asked.role, "role = {role:String}"),
        "within": (asked.within, "match(role, {within:String})"),
        "version": (asked.version, "policy_version = {version:UInt32}"),
        "arm": (asked.arm, "arm = {arm:String}"),
        "outcome": (asked.outcome, f"coalesce(outcome, '{NO_OUTCOME}') = {{outcome:String}}"),
        "source": (asked.source, "source = {source:String}"),
        "agent": (asked.agent, _named("agent_id", "agent")),
        "domain": (asked.domain, _named("domain", "domain")),
        "profile": (asked.profile, _named("subordinate_profile", "profile")),
    }
    given = {name: (value, condition) for name, (value, condition) in columns.items() if value is not None}
    parameters = {**{name: value for name, (value, _) in given.items()}, **asked.words}
    conditions = [condition for _, condition in given.values()]
    if asked.leaves_out_pinned:
        conditions.append(f"ifNull(arm, '') != '{PINNED}'")
    return conditions, parameters


def _of_other_tables(asked: TrajectoryFilter) -> tuple[list[str], dict[str, Any]]:
    """Conditions on the rewards and calls of trajectories, and their parameters."""
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    of_role = asked.of_role
    if asked.reward_min is not None or asked.reward_max is not None:
        bounds = ["total >= {reward_min:Float64}"] if asked.reward_min is not None else []
        bounds += ["total <= {reward_max:Float64}"] if asked.reward_max is not None else []
        conditions.append(
            "(role, trajectory_id) IN (SELECT role, trajectory_id FROM rewards"  # noqa: S608 - our own names
            f" WHERE ingested_at >= {instant('stored_since')}{of_role} AND {' AND '.join(bounds)})"
        )
        parameters |= {"reward_min": asked.reward_min, "reward_max": asked.reward_max}
    if asked.model is not None:
        within = f"toStartOfHour(at) >= {instant('called_since')}{of_role}"
        called = f"SELECT role, trajectory_id FROM calls WHERE {within}"  # noqa: S608 - our own names
        conditions.append(
            f"((role, recorded_as) IN ({called} AND model = {{model:String}})"
            f" OR (model = {{model:String}} AND (role, recorded_as) NOT IN ({called} AND model != '')))"
        )
        parameters["model"] = asked.model
    if asked.reason is not None:
        barred = "arm = 'mixed'" if asked.reason == "mixed" else "reason = {reason:String}"
        conditions.append(
            f"(role, recorded_as) IN (SELECT role, trajectory_id FROM turns"  # noqa: S608 - our own names
            f" WHERE ingested_at >= {instant('called_since')}{of_role} AND {barred})"
        )
        parameters["reason"] = asked.reason
    return conditions, {name: value for name, value in parameters.items() if value is not None}


def _texts(asked: TrajectoryFilter, text: str) -> Iterator[str]:
    """Conditions that each word stands in a message: in its body first, which no JSON has to be read for."""
    for name in asked.words:
        word = f"{{{name}:String}}"
        stands_in = "positionCaseInsensitiveUTF8({}, {}) > 0".format
        yield f"if({stands_in('body', word)}, {stands_in(text, word)}, false)"


async def _sizes(warehouse: Warehouse, table: str, places: Sequence[Place]) -> dict[tuple[str, str], int]:
    sql = f"""
SELECT role, trajectory_id, sum(length(body)) AS bytes FROM {table} WHERE {_OF_PLACES}
GROUP BY role, trajectory_id {WITHIN_TIME}
"""  # noqa: S608 - our own names
    return {key_of(row): row["bytes"] for row in await warehouse.rows(sql, _of_places(places))}


def _of_places(places: Sequence[Place]) -> dict[str, Any]:
    """Parameters of `_OF_PLACES`."""
    return {"keys": Texts(place.key for place in places)}


def _bound(places: Sequence[Place]) -> str:
    return WITHIN_TIME if len(places) > 1 else ALONE


def _bounds(asked: TrajectoryFilter) -> dict[str, Any]:
    return {
        "first": max(EARLIEST_MS, millis(asked.since)) if asked.since else EARLIEST_MS,
        "last": min(LATEST_MS, millis(asked.until)) if asked.until else LATEST_MS,
    }


def _after(place: Place) -> dict[str, Any]:
    return {"at": place.at, "id": place.trajectory_id, "of": place.role}


def ended_row(row: Row) -> Listed:
    """A row of `trajectories`."""
    return Listed(place_of(row), row["recorded_as"], row)


def place_of(row: Row) -> Place:
    return Place(row["place"], row["trajectory_id"], row["role"])


def key_of(row: Row) -> tuple[str, str]:
    """Of a row with its role and its id."""
    return row["role"], row["trajectory_id"]


def of_keys(keys: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Parameters of `OF_KEYS`."""
    return {"keys": list(keys)}


def of_ids(keys: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Parameters of `REWARDED`. Another role's trajectory of the same id may pass: compare the keys."""
    return {"roles": sorted({role for role, _ in keys}), "ids": sorted({key for _, key in keys})}


def millis(at: datetime) -> int:
    """Milliseconds since 1970."""
    return round(at.timestamp() * 1000)


def at_millis(at: int) -> datetime:
    """The instant."""
    return datetime.fromtimestamp(at / 1000, UTC)


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
