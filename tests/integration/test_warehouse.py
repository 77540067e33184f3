"""The warehouse gives back what was put in."""

from __future__ import annotations

import asyncio
import gc
import warnings
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ratchet.kernel.errors import Rejected
from ratchet.kernel.settings import KernelSettings
from ratchet.kernel.warehouse import Warehouse


async def test_instants_come_back_in_utc_and_say_so(kernel_settings: KernelSettings) -> None:
    warehouse = await Warehouse.connect(kernel_settings)
    try:
        await warehouse.command(
            "CREATE TABLE instants (n UInt8, at DateTime64(3, 'UTC'), maybe Nullable(DateTime64(3, 'UTC')))"
            " ENGINE = MergeTree ORDER BY n"
        )
        noon = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)
        elsewhere = noon.astimezone(timezone(timedelta(hours=5)))
        rows = [
            {"n": 1, "at": noon, "maybe": None},
            {"n": 2, "at": elsewhere, "maybe": elsewhere},
        ]
        await warehouse.insert("instants", rows, token="instants")
        first, second = await warehouse.rows("SELECT at, maybe FROM instants ORDER BY n")
        assert (first["at"], first["maybe"]) == (noon, None)
        assert (second["at"], second["maybe"]) == (noon, noon)
        assert {one.utcoffset() for one in (first["at"], second["at"], second["maybe"])} == {timedelta(0)}
    finally:
        await warehouse.close()


async def test_a_connection_that_cannot_be_made_leaves_no_session_open(kernel_settings: KernelSettings) -> None:
    unclosed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unclosed.append(context["message"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(Rejected):
            await Warehouse.connect(kernel_settings.model_copy(update={"clickhouse_database": "two words"}))
        gc.collect()
    assert unclosed == []
