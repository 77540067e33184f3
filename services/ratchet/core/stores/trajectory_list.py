"""The list of trajectories, newest first, page by page: each in one line, with its calls, its reward and its thumbs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from ratchet.core.contract.http.console import TrajectoryBrief
from ratchet.core.errors import WarehouseTooSlow
from ratchet.core.rules.arms import MIXED
from ratchet.core.stores.history import parts
from ratchet.core.stores.trajectory_search import (
    CALLED,
    EARLIEST_MS,
    ENDED,
    FIRST,
    NAME,
    OF_KEYS,
    REWARDED,
    TEXT_BYTES,
    TEXT_S,
    EndedSearch,
    Listed,
    OpenSearch,
    Place,
    Search,
    TrajectoryFilter,
    at_millis,
    ended_row,
    of_ids,
    of_keys,
    place_of,
)

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse

TEXT_CHUNKS = (200, 1_000)
"""Trajectories whose texts are read together at most: few at first, as the newest often suffice; the last size repeats.
So many keys are a field of a form, of which ClickHouse takes 128 KB."""
SMALLER = 8
"""So many times fewer are read where the time did not suffice for the first ones of a page."""

QUESTION_LETTERS = 160
"""Of a first question."""

_CALLS = f"""
SELECT role, trajectory_id, count() AS calls, countIf(error IS NOT NULL) AS failed, sum(latency_ms) AS latency,
    min(at) AS began, max(at) AS last, groupUniqArray(policy_version) AS versions,
    groupUniqArray(toString(arm)) AS arms, leftUTF8(max(trajectory_name), {NAME}) AS name, countIf(answered) AS answers,
    arraySort(groupUniqArrayIf(leftUTF8(toString(provider_model), {NAME}), provider_model != '')) AS models
FROM (
    SELECT role, trajectory_id, error, latency_ms, at, policy_version, arm, trajectory_name, answered, provider_model
    FROM turns WHERE {OF_KEYS} LIMIT 1 BY event_id
)
GROUP BY role, trajectory_id
"""  # noqa: S608 - our own names
_AGENTS = f"""
SELECT role, trajectory_id, leftUTF8(JSONExtractString(body, 'agent_id'), {NAME}) AS agent
FROM turns WHERE {OF_KEYS} AND event_id IN (
    SELECT argMin(event_id, (turn_index, attempt)) FROM turns WHERE {OF_KEYS} GROUP BY role, trajectory_id
) LIMIT 1 BY role, trajectory_id
"""  # noqa: S608 - as above
"""By their first calls: bodies of the others may be of many megabytes."""
_FIRST_USER = "arrayFirst(said -> JSONExtractString(said, 'role') = 'user', JSONExtractArrayRaw(body, 'messages'))"
_QUESTIONS = f"""
SELECT role, trajectory_id, leftUTF8(if(text != '', text, parts), {QUESTION_LETTERS}) AS question
FROM (
    SELECT role, trajectory_id, {_FIRST_USER} AS said, JSONExtractString(said, 'content') AS text,
        arrayStringConcat(arrayMap(part -> JSONExtractString(part, 'text'), JSONExtractArrayRaw(said, 'content')), ' ')
        AS parts
    FROM turns WHERE {OF_KEYS} AND turn_index = 0 ORDER BY at LIMIT 1 BY role, trajectory_id
)
"""  # noqa: S608 - as above
_OBSERVED = "Array(Tuple(observation Tuple(type String, content String)))"
_REPORTED = f"""
SELECT role, trajectory_id, leftUTF8(arrayFirst(
    entry -> entry.observation.type = 'user_message', JSONExtract(body, 'turns', '{_OBSERVED}')
).observation.content, {QUESTION_LETTERS}) AS question
FROM trajectories WHERE {OF_KEYS} ORDER BY ingested_at DESC LIMIT 1 BY role, trajectory_id
"""  # noqa: S608 - as above
"""Of trajectories without a call: as their agents reported them."""
_THUMBS = f"""
SELECT role, trajectory_id, sum(if(up, 1, -1)) AS thumbs
FROM (
    SELECT role, trajectory_id, argMax(JSONExtractBool(body, 'value'), (ingested_at, sequence)) AS up
    FROM feedback WHERE {OF_KEYS} AND kind = 'thumbs'
    GROUP BY role, trajectory_id, coalesce(rater, JSONExtract(body, 'user_ref', 'Nullable(String)'), feedback_id)
)
GROUP BY role, trajectory_id
"""  # noqa: S608 - as above
"""Each person's newest thumb counts."""


@dataclass(frozen=True, slots=True)
class TrajectoryPage:
    """A page, and the place after which the next one begins; None: there is none."""

    trajectories: Sequence[TrajectoryBrief]
    after: Place | None
    searched_since: datetime | None = None
    """The texts of older trajectories were not read: the next page goes on there. None: nothing was left out."""


@dataclass(slots=True)
class TrajectoryList:
    """Asks ClickHouse for pages of trajectories."""

    warehouse: Warehouse
    now: Callable[[], datetime]
    clock: Callable[[], float] = time.monotonic
    """Seconds, for how long texts are read."""

    async def page(self, asked: TrajectoryFilter, limit: int, after: Place = FIRST) -> TrajectoryPage:
        """Up to `limit` trajectories that come `after` a place."""
        text_s = TEXT_S / 2 if asked.state == "all" and asked.has_open else TEXT_S
        ended, opened = list[Listed](), list[Listed]()
        places: list[Place | None] = []
        if asked.state != "open":
            ended, place = await self._search(EndedSearch(self.warehouse, asked), limit + 1, after, text_s)
            places.append(place)
        if asked.has_open:
            down_to = min(row.place.at for row in ended) if len(ended) > limit else EARLIEST_MS
            search = OpenSearch(self.warehouse, asked, self.now(), down_to)
            opened, place = await self._search(search, limit + 1, after, text_s)
            places.append(place)
        reached = max((place for place in places if place is not None), default=None)
        rows = [row for row in (*ended, *opened) if reached is None or row.place >= reached]
        rows.sort(key=attrgetter("place"), reverse=True)
        if len(rows) > limit:
            return TrajectoryPage(await self._briefs(rows[:limit]), rows[limit - 1].place)
        return TrajectoryPage(await self._briefs(rows), reached, at_millis(reached.at) if reached else None)

    async def named(self, keys: Sequence[tuple[str, str]]) -> list[TrajectoryBrief]:
        """Those of these trajectories, by role and id, that are stored, in this order, ended or open."""
        rows: dict[tuple[str, str], Listed] = {}
        for part in parts(keys):
            stored = await self.warehouse.rows(ENDED, of_keys(part))
            rows |= {place_of(row).key: ended_row(row) for row in stored}
        for part in parts([key for key in keys if key not in rows]):
            for row in await self.warehouse.rows(CALLED, of_keys(part)):
                place = place_of(row)
                rows.setdefault(place.key, Listed(place, place.trajectory_id, {}))
        return await self._briefs([rows[key] for key in dict.fromkeys(keys) if key in rows])

    async def _search(
        self, search: Search, most: int, after: Place, text_s: float
    ) -> tuple[list[Listed], Place | None]:
        """Rows of one search, and the place that it had reached when its time was over; None when it is complete."""
        rows: list[Listed] = []
        sizes, place, until = list(TEXT_CHUNKS), after, self.clock() + text_s
        async for window in search.windows(after):
            is_over = False
            while not is_over and len(rows) < most:
                size = sizes[0] if search.reads_texts else most - len(rows)
                places = await search.candidates(window, place, size)
                is_over = len(places) < size
                try:
                    if search.reads_texts:
                        fitting = together(places, await search.sizes(places))
                        is_over, places = is_over and len(fitting) == len(places), fitting
                    passing = await search.passing(places)
                except WarehouseTooSlow as error:
                    if place != after:
                        return rows, place
                    if len(places) == 1:
                        raise _unreadable(places[0]) from error
                    # The next page must begin further on than this one did.
                    sizes, is_over = [max(1, len(places) // SMALLER)], False
                    continue
                rows += passing
                sizes = sizes[1:] or sizes
                place = Place(window.low, "", "") if is_over else places[-1]
                is_complete = is_over and window.is_last
                if search.reads_texts and not is_complete and len(rows) < most and self.clock() > until:
                    return rows, place
            if len(rows) >= most:
                break
        return rows, None

    async def _briefs(self, rows: Sequence[Listed]) -> list[TrajectoryBrief]:
        briefs: list[TrajectoryBrief] = []
        by_key = {row.place.key: row for row in rows}
        for part in parts(list(by_key)):
            briefs += await self._briefs_of([by_key[key] for key in part])
        return briefs

    async def _briefs_of(self, rows: Sequence[Listed]) -> list[TrajectoryBrief]:
        ask, by_id = self.warehouse.rows, of_keys([row.place.key for row in rows])
        runs = list(dict.fromkeys((row.place.role, row.recorded_as) for row in rows))
        opened = [row.place.key for row in rows if not row.row]
        tables = await asyncio.gather(
            ask(_CALLS, of_keys(runs)),
            ask(_AGENTS, of_keys(opened)) if opened else asyncio.sleep(0, list["Row"]()),
            ask(REWARDED, of_ids([row.place.key for row in rows])),
            ask(_THUMBS, by_id),
            ask(_QUESTIONS, of_keys(runs)),
        )
        calls, agents, rewards, thumbs, questions = (
            {(row["role"], row["trajectory_id"]): row for row in table} for table in tables
        )
        uncalled = [row.place.key for row in rows if (row.place.role, row.recorded_as) not in questions]
        reported = await ask(_REPORTED, of_keys(uncalled)) if uncalled else []
        questions |= {(row["role"], row["trajectory_id"]): row for row in reported}
        briefs: list[TrajectoryBrief] = []
        for row in rows:
            run, key = (row.place.role, row.recorded_as), row.place.key
            called = calls.get(run, {}) | agents.get(run, {})
            asked = questions.get(run) or questions.get(key, {})
            called |= {"question": asked.get("question")}
            briefs.append(_brief(row, called, rewards.get(key, {}), thumbs.get(key, {}).get("thumbs", 0)))
        return briefs


def together(places: Sequence[Place], sizes: Mapping[tuple[str, str], int]) -> Sequence[Place]:
    """The first of the candidates, so many that their bodies are of `TEXT_BYTES` at most, but one."""
    sums = accumulate(sizes.get(place.key, 0) for place in places)
    return places[: max(1, sum(total <= TEXT_BYTES for total in sums))]


def _unreadable(place: Place) -> WarehouseTooSlow:
    before = at_millis(place.at - 1).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return WarehouseTooSlow(
        f"the texts of the trajectory {place.trajectory_id} alone take too long to read: ask for older ones, "
        f"until {before}"
    )


def _brief(listed: Listed, called: Row, reward: Row, thumbs: int) -> TrajectoryBrief:
    row, role = listed.row, listed.place.role
    versions, arms = called.get("versions", []), called.get("arms", [])
    if row:
        versions = [row["policy_version"]] if row["policy_version"] is not None else versions
        arms = [row["arm"]] if row["arm"] is not None else arms
    arm = None if not arms else arms[0] if len(arms) == 1 else MIXED
    is_mixed = len(versions) > 1 or arm == MIXED
    # Confidence 0: no component applied, so the total rewards nothing.
    value = reward["total"] if reward.get("confidence") else None
    return TrajectoryBrief(
        trajectory_id=listed.place.trajectory_id,
        role=role,
        state="ended" if row else "open",
        agent_id=row["agent_id"] if row else called.get("agent") or "unknown",
        name=called.get("name") or None,
        question=called.get("question") or None,
        task_id=row.get("task_id"),
        source=row.get("source"),
        policy=MIXED if is_mixed else f"{role}@{versions[0]}" if versions else None,
        arm=arm,
        # What the servers named in their answers; without calls, what was reported.
        model=", ".join(called["models"]) or None if "models" in called else row.get("model"),
        turns=row.get("turn_count"),
        calls=called.get("calls", 0),
        answers=called.get("answers", 0),
        failed_calls=called.get("failed", 0),
        outcome=row.get("outcome"),
        reward=value,
        revision=reward.get("revision"),
        thumbs=thumbs,
        started_at=row["started_at"] if row else called.get("began", at_millis(listed.place.at)),
        ended_at=row.get("ended_at"),
        last_call_at=called.get("last"),
        latency_ms=called.get("latency"),
    )
