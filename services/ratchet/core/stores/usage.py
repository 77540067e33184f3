"""What calls used, over time: tokens, latency and cost per role, policy version, key and API.

Usage is a view over the table `calls`, which holds each call once however often its message came: a sum would count a
replay twice (two collectors that look an event up at once, a broker that was restored), `ReplacingMergeTree` does not.
Calls are turns: `n` answers to one request are so many calls, each with the prompt's tokens; their cost has the prompt
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

_ANSWERED = "NOT c.failed AND NOT c.cancelled"
_QUANTILES = "0.5, 0.95, 0.99"

GROUPS: Mapping[str, str] = {
    "version": "concat(role, '@', toString(policy_version))",
    "key": "key_id",
    "api": "api",
    "model": "model",
    "arm": "toString(arm)",
    "hour": "formatDateTime(hour, '%Y-%m-%dT%H:00:00Z')",
}
"""By what usage may be grouped, each with its expression over the view's columns."""


def hourly(where: str = "") -> str:
    """The query of usage per hour and everything that it is grouped by. `where`: a condition on rows `c` of `calls`."""
    condition = f"\nWHERE {where}" if where else ""
    return f"""SELECT
    toStartOfHour(c.at) AS hour,
    c.role AS role,
    c.policy_version AS policy_version,
    c.arm AS arm,
    c.api AS api,
    c.key_id AS key_id,
    c.model AS model,
    count() AS calls,
    countIf(c.failed) AS errors,
    countIf(c.cancelled) AS cancelled,
    sum(c.prompt_tokens) AS prompt_tokens,
    sum(c.cached_tokens) AS cached_tokens,
    sum(c.completion_tokens) AS completion_tokens,
    sum(c.reasoning_tokens) AS reasoning_tokens,
    sum(ifNull(c.cost_usd, 0)) AS cost_usd,
    countIf(c.cost_usd IS NULL) AS unpriced,
    quantilesTDigestStateIf({_QUANTILES})(
        assumeNotNull(c.latency_ms), c.latency_ms IS NOT NULL AND {_ANSWERED}
    ) AS latency,
    quantilesTDigestStateIf({_QUANTILES})(assumeNotNull(c.first_token_ms), c.first_token_ms IS NOT NULL) AS first_token
FROM calls AS c FINAL{condition}
GROUP BY hour, role, policy_version, arm, api, key_id, model"""  # noqa: S608 - our own names


SINCE = (
    "({role:String} = '' OR c.role = {role:String}) AND c.at >= {since:DateTime64(3, 'UTC')}"
    " AND toStartOfHour(c.at) >= toStartOfHour({since:DateTime64(3, 'UTC')})"
)
"""The condition on calls of a role (`''`: all) since an instant. The table is ordered by hours: older ones are not
read."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one group."""

    group: str
    """A version (`support@2`; 0 is an upstream's model), a key's id (or empty), an API, a model, an arm or an hour."""
    calls: int
    errors: int
    cancelled: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's."""
    completion_tokens: int
    reasoning_tokens: int
    """Of the completion's."""
    cost_usd: float
    unpriced: int
    """Calls whose cost is not known."""
    latency_ms: tuple[float, float, float] | None
    """p50, p95 and p99 of answered calls; None where none was answered."""
    first_token_ms: tuple[float, float, float] | None
    """The same of streams, to their first token."""


async def usage(warehouse: Warehouse, by: str, role: str | None, since: datetime) -> list[Usage]:
    """Usage since an instant, by one of `GROUPS`: the group that cost the most first, hours in order."""
    order = "grouped" if by == "hour" else "cost_usd DESC, calls DESC, grouped"
    sums = ", ".join(
        f"sum(h.{name}) AS {name}"
        for name in Usage.__struct_fields__
        if name not in {"group", "latency_ms", "first_token_ms"}
    )
    quantiles = f"quantilesTDigestMerge({_QUANTILES})"
    sql = f"""
        SELECT {GROUPS[by]} AS grouped, {sums}, {quantiles}(h.latency) AS latencies,
            {quantiles}(h.first_token) AS first_tokens
        FROM ({hourly(SINCE)}) AS h GROUP BY grouped ORDER BY {order}
    """  # noqa: S608 - our own names
    rows = await warehouse.rows(sql, {"role": role or "", "since": since})
    groups: list[Usage] = []
    for row in rows:
        latency, first = (_quantiles(row.pop(name)) for name in ("latencies", "first_tokens"))
        groups.append(Usage(group=row.pop("grouped"), latency_ms=latency, first_token_ms=first, **row))
    return groups


def _quantiles(values: list[float]) -> tuple[float, float, float] | None:
    """The three quantiles; None for those of nothing, which are NaN."""
    p50, p95, p99 = values
    return None if p50 != p50 else (p50, p95, p99)  # noqa: PLR0124 - only NaN differs from itself
