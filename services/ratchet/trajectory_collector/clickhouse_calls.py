"""Adds the calls of turns that were stored before the table `calls` existed: newest first, in bounded steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from ratchet.core.stores.warehouse import Warehouse

log = structlog.get_logger()

FILL_INTERVAL_S = 5.0
STEP_ROWS = 200_000
"""Turns of one step: a statement of about half a second on one slow core."""
SINCE_EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""What `call_fills` holds when nothing is left to add."""

_NEXT = """
SELECT min(ingested_at) AS since, count() AS turns
FROM (
    SELECT ingested_at FROM turns WHERE ingested_at < {before:DateTime64(3, 'UTC')}
    ORDER BY ingested_at DESC LIMIT {rows:UInt32}
)
"""
_ADD = """
INSERT INTO calls
SELECT event_id, role, at, policy_version, arm, api, key_id, provider_model, error IS NOT NULL,
    ifNull(finish_reason, '') = 'cancelled', ifNull(prompt_tokens, 0), ifNull(cached_tokens, 0),
    ifNull(output_tokens, 0), ifNull(reasoning_tokens, 0), cost_usd, latency_ms, first_token_ms, ingested_at
FROM turns
WHERE ingested_at >= {since:DateTime64(3, 'UTC')} AND ingested_at < {before:DateTime64(3, 'UTC')}
"""
"""`rows.call_of` in ClickHouse's words."""


class CallsFill:
    """Goes back through the turns, a step each tick, and remembers in `call_fills` how far it has come.

    Two collectors may do the same: a call that is added again replaces itself.
    """

    def __init__(self, warehouse: Warehouse, now: Callable[[], datetime], step_rows: int = STEP_ROWS) -> None:
        self._warehouse = warehouse
        self._now = now
        self._step_rows = step_rows

    async def tick(self) -> None:
        """One step, if any turns are left. Raises `Unavailable`."""
        (fill,) = await self._warehouse.rows("SELECT min(filled_since) AS since, count() AS fills FROM call_fills")
        if fill["fills"] and fill["since"] == SINCE_EVER:
            return
        before = fill["since"] if fill["fills"] else self._now()
        (step,) = await self._warehouse.rows(_NEXT, {"before": before, "rows": self._step_rows})
        if step["turns"]:
            await self._warehouse.command(_ADD, {"since": step["since"], "before": before})
        since = step["since"] if step["turns"] else SINCE_EVER
        await self._warehouse.insert("call_fills", [{"filled_since": since, "at": self._now()}], token=None)
        if step["turns"]:
            log.info("calls of older turns added", turns=step["turns"], since=since.isoformat())
