"""Stored preferences: which are known, the newest ones, and how many there are from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ratchet.core.contract import Preference, decode

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

_KNOWN = "SELECT DISTINCT preference_id FROM preferences WHERE preference_id IN {ids:Array(String)}"
_CHOSEN = "({role:String} = '' OR role = {role:String}) AND ({source:String} = '' OR source = {source:String})"
_NEWEST = f"""
SELECT body, ingested_at, sequence FROM preferences FINAL
WHERE {_CHOSEN} AND (ingested_at, sequence, preference_id) < ({{at:DateTime64(3)}}, {{sequence:UInt64}}, {{id:String}})
ORDER BY ingested_at DESC, sequence DESC, preference_id DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608 - both parts are above
_COUNTS = f"""
SELECT role, source, coalesce(rater, '') AS rater, uniqExact(preference_id) AS number
FROM preferences WHERE {_CHOSEN} GROUP BY role, source, rater ORDER BY role, source, number DESC, rater
"""  # noqa: S608 - as above
END = datetime(2200, 1, 1, tzinfo=UTC), 0, ""
"""A place after every other."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One stored preference."""

    preference: Preference
    at: datetime
    sequence: int
    """Its place in the stream."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many preferences one rater, or rule, gave."""

    role: str
    source: str
    rater: str | None
    number: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which ones; None means all."""

    role: str | None = None
    source: str | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """As the queries take them."""
        return {"role": self.role or "", "source": self.source or ""}


class StoredPreferences:
    """Queries over all roles' preferences."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def known(self, ids: Sequence[str]) -> frozenset[str]:
        """Those of the ids that are stored."""
        rows = await self._warehouse.rows(_KNOWN, {"ids": list(ids)})
        return frozenset(row["preference_id"] for row in rows)

    async def newest(self, selection: Selection, limit: int, before: Kept | None = None) -> list[Kept]:
        """The newest ones first; `before`: those that come after this one, the last of the page before."""
        at, sequence, name = (before.at, before.sequence, before.preference.preference_id) if before else END
        asked = {**selection.parameters, "limit": limit, "at": at, "sequence": sequence, "id": name}
        rows = await self._warehouse.rows(_NEWEST, asked)
        return [Kept(decode(row["body"].encode(), Preference), row["ingested_at"], row["sequence"]) for row in rows]

    async def counts(self, selection: Selection) -> list[Count]:
        """By role, source and rater."""
        rows = await self._warehouse.rows(_COUNTS, selection.parameters)
        return [Count(row["role"], row["source"], row["rater"] or None, row["number"]) for row in rows]
