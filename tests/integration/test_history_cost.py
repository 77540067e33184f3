"""Batches, audits and snapshots read no more as history grows: counted in granules, not in seconds."""

from __future__ import annotations

from ratchet.core.service.settings import SharedSettings
from tests.bench.bench_history import explaining, fill, measure
from tests.support.running import prepared_warehouse

SHORT, LONG = 25_000, 250_000
SLACK = 10
"""Granules: every table has one more for each part, and parts are merged when ClickHouse likes."""


async def test_no_query_of_the_event_plane_reads_more_of_a_longer_history(shared_settings: SharedSettings) -> None:
    """Ten times the rows: a column read whole would be ten times the granules."""
    async with prepared_warehouse(shared_settings) as plain:
        warehouse = await explaining(shared_settings)
        try:
            granules: list[dict[str, int]] = []
            for rows in (SHORT, LONG):
                await fill(plain, rows)
                granules.append({name: one.granules for name, one in (await measure(warehouse, rows)).items()})
        finally:
            await warehouse.close()
    short, long = granules
    assert {name: (short[name], long[name]) for name in short if long[name] > 2 * short[name] + SLACK} == {}
