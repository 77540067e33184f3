"""History for another reward function: which trajectories there are, and the rewards that are proposed for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from ratchet.core.contract import Reward, decode, encode
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.stores.history import OF_ROLE, History
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.reward_computer.clickhouse_facts import Key

TABLE = "proposed_rewards"
PAGE = 250
"""Trajectories that are read together: their ids are part of a query's url."""

_STORED = f"""
SELECT trajectory_id FROM trajectories
WHERE {OF_ROLE} AND ingested_at > {{since:DateTime64(3)}}
GROUP BY trajectory_id ORDER BY min(ingested_at), trajectory_id
"""  # noqa: S608 - our own names
_JUDGED = f"""
SELECT DISTINCT trajectory_id FROM feedback
WHERE {OF_ROLE} AND kind = 'judgement' AND ingested_at > {{since:DateTime64(3)}}
"""  # noqa: S608 - as above
_IN_USE = (
    "SELECT 1 AS used FROM rewards WHERE function_name = {name:String} AND function_version = {version:String} LIMIT 1"
)
_PROPOSED = f"""
SELECT number, role, trajectory_id, body FROM {TABLE} FINAL
WHERE function_name = {{name:String}} AND function_version = {{version:String}} AND digest = {{digest:String}}
    AND (number, role, trajectory_id) > ({{number:Int64}}, {{role:String}}, {{trajectory_id:String}})
ORDER BY number, role, trajectory_id LIMIT {{page:UInt32}}
"""  # noqa: S608 - as above


class Proposals:
    """Reads history, and keeps what is proposed beside it."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._history = History(warehouse)

    async def roles(self) -> list[str]:
        """Every role that has trajectories."""
        return await self._history.roles()

    async def stored(self, role: str, since: datetime) -> list[Key]:
        """A role's trajectories that were stored since an instant, in that order."""
        return await self._keys(_STORED, role, since)

    async def judged(self, role: str, since: datetime) -> list[Key]:
        """Those that a judge judged since then."""
        return await self._keys(_JUDGED, role, since)

    async def is_in_use(self, function: RewardFunction) -> bool:
        """Whether any reward was computed with it."""
        return bool(await self._warehouse.rows(_IN_USE, {"name": function.name, "version": function.version}))

    async def propose(self, rewards: Iterable[tuple[int, tuple[Reward, Reward]]], digest: str) -> None:
        """Keep rewards beside those that count now: each with its number, after the one that counts."""
        rows = [_row(number, before, after, digest) for number, (before, after) in rewards]
        await self._warehouse.insert(TABLE, rows, token=None)

    async def proposed(self, function: RewardFunction, digest: str) -> AsyncIterator[Sequence[Reward]]:
        """What was proposed as this function, page by page, in the order in which it was computed."""
        named = {"name": function.name, "version": function.version, "digest": digest, "page": PAGE}
        last: Row = {"number": -1, "role": "", "trajectory_id": ""}
        while rows := await self._warehouse.rows(_PROPOSED, {**named, **last}):
            last = {name: rows[-1][name] for name in last}
            yield [decode(row["body"].encode(), Reward) for row in rows]

    async def _keys(self, sql: str, role: str, since: datetime) -> list[Key]:
        rows = await self._warehouse.rows(sql, {"role": role, "since": since})
        return [(role, row["trajectory_id"]) for row in rows]


def _row(number: int, before: Reward, reward: Reward, digest: str) -> Row:
    function = reward.reward_function or RewardFunction(name="", version="")
    parts = reward.reward_components.items()
    return {
        "role": reward.role,
        "trajectory_id": reward.trajectory_id,
        "function_name": function.name,
        "function_version": function.version,
        "digest": digest,
        "number": number,
        "revision": reward.revision,
        "total": reward.total_reward,
        "total_before": before.total_reward,
        "components": {name: part.score for name, part in parts if part.applicable},
        "confidence": reward.metadata.confidence,
        "at": reward.timestamp,
        "body": encode(reward).decode(),
    }
