"""How long ClickHouse keeps rows: the age at which they expire, by table."""

from __future__ import annotations

import re

import structlog

from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.rows import TABLES
from ratchet.trajectory_collector.settings import Settings

log = structlog.get_logger()

LEDGER_TTL_DAYS = 400
"""Entries of the ledger are removed after this long (their windows stay): longer than any stream keeps messages."""
RETENTION_INTERVAL_S = 3600.0
"""How often the collector compares the tables with its settings: a table may have been restored from a backup."""


SPANS_TTL_DAYS = 30
"""Spans have become turns and trajectories within days, and hold the same texts."""


def spans_ttl_days(facts_ttl_days: int) -> int:
    """How long rows of `spans` are kept, where those of the other fact tables are for so long (0: for ever)."""
    return min(SPANS_TTL_DAYS, facts_ttl_days or SPANS_TTL_DAYS)


class Retention:
    """Gives every table the age in the settings, and leaves tables alone that have it."""

    def __init__(self, warehouse: Warehouse, settings: Settings) -> None:
        self._warehouse = warehouse
        self._ages = {
            **{table.name: ("ingested_at", settings.facts_ttl_days) for table in TABLES.values()},
            "spans": ("ingested_at", spans_ttl_days(settings.facts_ttl_days)),
            "calls": ("ingested_at", settings.facts_ttl_days),
            "ledger_entries": ("at", LEDGER_TTL_DAYS),
        }

    async def tick(self) -> None:
        """Compare and change. Raises `Unavailable`."""
        rows = await self._warehouse.rows(
            "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"
            " AND name IN {names:Array(String)}",
            {"names": list(self._ages)},
        )
        for row in rows:
            column, days = self._ages[row["name"]]
            ttl = re.search(r"TTL toDateTime\(\w+\) \+ toIntervalDay\((\d+)\)", row["engine_full"])
            if days == (int(ttl[1]) if ttl else 0):
                continue
            change = f"MODIFY TTL toDateTime({column}) + toIntervalDay({days})" if days else "REMOVE TTL"
            # Rows that are too old already go with the next merges, not all at once.
            await self._warehouse.command(
                f"ALTER TABLE {row['name']} {change} SETTINGS materialize_ttl_after_modify = 0"
            )
            log.info("retention changed", table=row["name"], days=days or None)
