"""People's opinions: what to rate next, pairs to choose between, and how far raters agree."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ratchet.console.messages import messages_out
from ratchet.console.pairs import Pair, PairKey, key_of, keys_of, pair_of, preference_of
from ratchet.core.contract.http.console import (
    AgreementOut,
    JudgementIn,
    JudgementOut,
    PairOut,
    PairsOut,
    QueueOut,
    RaterOut,
    TrajectoryBrief,
)
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.errors import NotFound, Rejected, WrongState
from ratchet.core.preferences.agreement import agreement
from ratchet.core.preferences.clickhouse_stored import StoredPreferences
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.publishing import Published, Sink, publish
from ratchet.core.preferences.quarantine import Quarantine, standing
from ratchet.core.preferences.rules.base import Try
from ratchet.core.rules.access import Caller, RoleSet
from ratchet.core.rules.redaction import redact_message
from ratchet.core.stores.history import OF_ROLE
from ratchet.core.stores.trajectory_search import OF_KEYS, TrajectoryFilter, instant, millis, of_keys, parts

if TYPE_CHECKING:
    from ratchet.core.stores.trajectory_list import TrajectoryList
    from ratchet.core.stores.warehouse import Warehouse

K = TypeVar("K")
LOOKED_AT = 500
"""Newest trajectories among which the queue looks for those that are worth rating."""
TRIES, TASKS, SPAN = 20_000, 500, timedelta(days=90)
"""Newest tries that are looked at for pairs, tasks of which pairs are offered, and since when."""
AT_ONCE, MOST_AT_ONCE = 8, 48
"""Pairs whose texts are read together until one of them can be shown, and in all."""
REMEMBERED = 10_000
"""Choices of late that stay in memory: ClickHouse has a preference some seconds after it was published."""
OPINIONS = 200_000
"""Newest preferences of a role that agreement is computed from."""
UNREADABLE = "the two answers of this pair cannot be read any more: ask for the next pair"
UNSURE = 0.5
"""A reward of less confidence is worth a person's look."""

_TASKS = f"""
SELECT task_key, groupArray(32)(trajectory_id) AS ids
FROM (
    SELECT coalesce(group_key, task_id) AS task_key, trajectory_id, ingested_at, ifNull(toString(arm), '') AS claimed
    FROM trajectories WHERE {OF_ROLE} AND ingested_at >= {instant("since")}
    ORDER BY ingested_at DESC LIMIT 1 BY trajectory_id LIMIT {{tries:UInt32}}
)
WHERE claimed NOT IN ('mixed', 'pinned')
GROUP BY task_key HAVING count() > 1
ORDER BY max(ingested_at) DESC, task_key LIMIT {{tasks:UInt32}}
"""  # noqa: S608 - our own names
_TASK_KEYS = f"""
SELECT trajectory_id, coalesce(group_key, task_id) AS task_key, domain FROM trajectories WHERE {OF_KEYS}
ORDER BY ingested_at DESC LIMIT 1 BY trajectory_id
"""  # noqa: S608 - as above
_JUDGED = f"""
SELECT DISTINCT
    JSONExtractString(body, 'chosen_trajectory_id') AS chosen,
    JSONExtractString(body, 'rejected_trajectory_id') AS other
FROM preferences WHERE {OF_ROLE} AND rater = {{rater:String}}
UNION DISTINCT SELECT one AS chosen, other FROM pair_skips WHERE {OF_ROLE} AND rater = {{rater:String}}
"""  # noqa: S608 - as above
_RATED = f"""
SELECT role, trajectory_id,
    countIf(rater IN {{raters:Array(String)}} OR (key = {{key:String}} AND key != '')) > 0 AS by_caller,
    countIf(kind = 'thumbs' AND up) AS ups, countIf(kind = 'thumbs' AND NOT up) AS downs
FROM (
    SELECT role, trajectory_id, kind, rater, JSONExtractString(body, 'key_id') AS key,
        JSONExtractBool(body, 'value') AS up
    FROM feedback WHERE {OF_KEYS} AND kind IN ('thumbs', 'rating', 'correction')
    LIMIT 1 BY role, trajectory_id, event_id
)
GROUP BY role, trajectory_id
"""  # noqa: S608 - as above
_UNSURE = f"""
SELECT role, trajectory_id, argMax(coalesce(confidence, 1), (at, revision)) AS sure FROM rewards WHERE {OF_KEYS}
GROUP BY role, trajectory_id
"""  # noqa: S608 - as above


class Annotation:
    """Asks ClickHouse what to look at, and publishes what people chose."""

    def __init__(
        self,
        warehouse: Warehouse,
        listing: TrajectoryList,
        sink: Sink,
        now: Callable[[], datetime],
        quarantine: Quarantine,
    ) -> None:
        self._warehouse = warehouse
        self._listing = listing
        self._sink = sink
        self._now = now
        self._quarantine = quarantine
        self._tries = Tries(warehouse)
        self._done: OrderedDict[tuple[str, PairKey], None] = OrderedDict()
        """By rater and pair."""
        self._alike: OrderedDict[PairKey, None] = OrderedDict()
        """Pairs whose texts make no choice: equal answers, other questions, unreadable ones."""
        self._reading = asyncio.Semaphore(1)

    async def queue(self, caller: Caller, roles: RoleSet, role: str | None, limit: int) -> QueueOut:
        """Trajectories of the roles that the caller has not rated, of the newest: first those that people disagree on,
        then those without a reward that says something, then the newest. Evaluations are none of them: no thumb on one
        may teach.
        """
        asked_for = TrajectoryFilter(role=role, within=roles.pattern, state="ended", evaluation=False)
        page = await self._listing.page(asked_for, LOOKED_AT)
        keys = [(trajectory.role, trajectory.trajectory_id) for trajectory in page.trajectories]
        rated: dict[tuple[str, str], tuple[bool, bool]] = {}
        unsure: set[tuple[str, str]] = set()
        for part in parts(keys):
            asked = {**of_keys(part), "raters": [caller.actor(), caller.name], "key": caller.key_id or ""}
            for row in await self._warehouse.rows(_RATED, asked):
                rated[row["role"], row["trajectory_id"]] = bool(row["by_caller"]), bool(row["ups"] and row["downs"])
            for row in await self._warehouse.rows(_UNSURE, asked):
                if row["sure"] < UNSURE:
                    unsure.add((row["role"], row["trajectory_id"]))

        def worth(one: TrajectoryBrief) -> int:
            key = one.role, one.trajectory_id
            is_disputed = rated.get(key, (False, False))[1]
            return 0 if is_disputed else 1 if one.reward is None else 2 if key in unsure else 3

        left = [
            trajectory
            for trajectory in page.trajectories
            if not rated.get((trajectory.role, trajectory.trajectory_id), (False, False))[0]
        ]
        return QueueOut(trajectories=sorted(left, key=worth)[:limit], remaining=len(left))

    async def pair(self, caller: Caller, role: str) -> PairsOut:
        """The next pair of a role that the caller has not judged."""
        rater = caller.actor()
        since = {"role": role, "since": millis(self._now() - SPAN), "tries": TRIES, "tasks": TASKS}
        tasks = await self._warehouse.rows(_TASKS, since)
        judged = {
            tuple(sorted((row["chosen"], row["other"])))
            for row in await self._warehouse.rows(_JUDGED, {"role": role, "rater": rater})
        }
        every = keys_of(role, [row["ids"] for row in tasks])
        left = [
            key
            for key in every
            if (key.one, key.other) not in judged and (rater, key) not in self._done and key not in self._alike
        ]
        for start in range(0, min(len(left), MOST_AT_ONCE), AT_ONCE):
            some = left[start : start + AT_ONCE]
            tries = await self._readable(role, sorted({name for key in some for name in (key.one, key.other)}))
            pairs = {key: pair_of(key, tries) for key in some}
            _remember(self._alike, [key for key, pair in pairs.items() if pair is None])
            shown = next((pair for pair in pairs.values() if pair is not None), None)
            if shown is not None:
                remaining = sum(key not in self._alike for key in left)
                return PairsOut(pair=await asyncio.to_thread(_pair_out, shown, rater, remaining), why=None)
        if not every:
            return PairsOut(pair=None, why=f"no task of {role} was tried twice in the last {SPAN.days} days")
        why = f"none of the {MOST_AT_ONCE} pairs looked at can be shown: their answers are alike; ask again for others"
        if len(left) <= MOST_AT_ONCE:
            why = "there is no pair left whose answers differ"
        return PairsOut(pair=None, why=why)

    async def judge(self, caller: Caller, roles: RoleSet, judgement: JudgementIn) -> JudgementOut:
        """Take a choice. Raises `BadRequest`, `NotFound` for a pair of another role or that cannot be read any more,
        and `WrongState` for one whose texts have changed since it was shown."""
        rater, key = caller.actor(), key_of(judgement.pair_id)
        if key.role not in roles:
            raise NotFound(UNREADABLE)
        if judgement.choice == "neither":
            skipped = {"role": key.role, "rater": rater, "one": key.one, "other": key.other, "at": self._now()}
            await self._warehouse.insert("pair_skips", [skipped], token=None)
            return JudgementOut(preference_id=None)
        pair = pair_of(key, await self._readable(key.role, [key.one, key.other]))
        if pair is None:
            raise NotFound(UNREADABLE)
        if judgement.digest is not None and judgement.digest != pair.digest:
            raise WrongState("an answer of this pair was reported anew since it was shown: look at it again")
        chosen = preference_of(pair, rater, judgement.choice, judgement.confidence, judgement.comment)
        redacted, _ = redact_message(chosen)
        # Who judged which two is no text of theirs: the rater's own pairs are found by it again.
        preference = msgspec.structs.replace(
            redacted,
            rater=chosen.rater,
            chosen_trajectory_id=chosen.chosen_trajectory_id,
            rejected_trajectory_id=chosen.rejected_trajectory_id,
        )
        done = Published()
        await publish(self._sink, StoredPreferences(self._warehouse).known, [preference], done)
        if done.refused:
            raise Rejected(done.refused[0].reason)
        _remember(self._done, [(rater, key)])
        return JudgementOut(preference_id=preference.preference_id)

    async def agreement(self, role: str) -> AgreementOut:
        """How far the raters of a role agree."""
        opinions = await Preferences(self._warehouse, OPINIONS).opinions(role)
        report = await asyncio.to_thread(agreement, opinions)
        decisions = await self._quarantine.decisions(role)
        return AgreementOut(
            role=role,
            questions=report.questions,
            alpha=report.alpha,
            raters=[RaterOut(**asdict(rater), standing=standing(rater, decisions)) for rater in report.raters],
        )

    async def _readable(self, role: str, ids: Sequence[str]) -> dict[str, Try]:
        async with self._reading:  # texts of many megabytes each
            rows = await self._warehouse.rows(_TASK_KEYS, of_keys([(role, name) for name in ids]))
            tries = [Try(row["trajectory_id"], role, row["task_key"], domain=row["domain"]) for row in rows]
            readable, _ = await self._tries.with_texts(role, tries)
        return {attempt.trajectory_id: attempt for attempt in readable}


def _remember(kept: OrderedDict[K, None], keys: Iterable[K]) -> None:
    for key in keys:
        kept[key] = None
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)


def _pair_out(pair: Pair, rater: str, remaining: int) -> PairOut:
    left, right = pair.sides(rater)
    question = [(message, None) for message in pair.one.messages[: pair.start]]
    sides = [
        messages_out(((message, None) for message in side.messages[pair.start :]), pair.start) for side in (left, right)
    ]
    return PairOut(
        pair_id=pair.key.pair_id,
        role=pair.key.role,
        task_id=pair.one.task_key,
        question=messages_out(question),
        left=sides[0],
        right=sides[1],
        remaining=remaining,
        digest=pair.digest,
    )
