"""Stored preferences and thumbs, as far as snapshots need them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ratchet.core.contract import Preference
from ratchet.core.datasets.domain.labels import Thumb
from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.stores.history import History
from ratchet.core.stores.warehouse import Warehouse

_OPINIONS = """
SELECT
    p.preference_id AS preference_id,
    p.source AS source,
    p.rater AS rater,
    p.domain AS domain,
    p.ingested_at AS at,
    p.sequence AS sequence,
    hex(sipHash128(JSONExtractRaw(p.body, 'prompt'))) AS prompt,
    hex(sipHash128(JSONExtractRaw(p.body, 'chosen'))) AS chosen,
    hex(sipHash128(JSONExtractRaw(p.body, 'rejected'))) AS rejected,
    JSONExtract(p.body, 'group_key', 'Nullable(String)') AS group_key,
    JSONExtract(p.body, 'confidence', 'Nullable(Float64)') AS confidence
FROM preferences AS p FINAL
WHERE p.role = {role:String}
ORDER BY p.ingested_at DESC, p.sequence DESC
LIMIT {limit:UInt32}
"""
_THUMBS = """
SELECT
    f.trajectory_id AS trajectory_id,
    JSONExtractBool(f.body, 'value') AS up,
    coalesce(f.rater, JSONExtract(f.body, 'user_ref', 'Nullable(String)')) AS rater
FROM feedback AS f FINAL
WHERE f.role = {role:String} AND f.kind = 'thumbs'
ORDER BY f.ingested_at DESC, f.sequence DESC
LIMIT {limit:UInt32}
"""
_COUNT = "SELECT uniqExact(preference_id, event_id) AS stored FROM preferences WHERE role = {role:String}"
_WATERMARK = "SELECT max(sequence) AS sequence FROM {table} WHERE role = {{role:String}}"


class Preferences:
    """Reads what people and rules preferred in one role."""

    def __init__(self, warehouse: Warehouse, history_limit: int) -> None:
        self._warehouse = warehouse
        self._history_limit = history_limit

    async def opinions(self, role: str) -> list[Opinion]:
        """The newest preferences of a role, without their texts."""
        rows = await self._warehouse.rows(_OPINIONS, self._newest(role))
        return await asyncio.to_thread(lambda: [Opinion(**row) for row in rows])

    async def preferences(self, role: str, ids: Sequence[str]) -> dict[str, Preference]:
        """Stored preferences by id."""
        preferences = await History(self._warehouse).messages("preferences", Preference, role, ids)
        return {preference.preference_id: preference for preference in preferences}

    async def count(self, role: str) -> int:
        """The number of all preferences of a role."""
        return int((await self._warehouse.rows(_COUNT, {"role": role}))[0]["stored"])

    async def thumbs(self, role: str) -> list[Thumb]:
        """The newest thumbs of a role, oldest first."""
        rows = await self._warehouse.rows(_THUMBS, self._newest(role))
        return await asyncio.to_thread(
            lambda: [Thumb(row["trajectory_id"], bool(row["up"]), row["rater"]) for row in reversed(rows)]
        )

    async def watermark(self, role: str, table: str) -> int:
        """Newest stored sequence of the role in `preferences` or `feedback`: queries that follow see at least this."""
        rows = await self._warehouse.rows(_WATERMARK.format(table=table), {"role": role})
        return int(rows[0]["sequence"])

    def _newest(self, role: str) -> dict[str, str | int]:
        return {"role": role, "limit": self._history_limit}
