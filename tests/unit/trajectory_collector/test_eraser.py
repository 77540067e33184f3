"""When an erasure that was done is carried out once more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ratchet.core.contract.erasure import ASKED, DONE, REMOVED, USER, Erasure
from ratchet.trajectory_collector.erasing import worker
from ratchet.trajectory_collector.erasing.worker import Eraser

ERASURE = Erasure(
    erasure_id="0199f7b0-0000-7111-8222-333344445555",
    kind=USER,
    ref="mia",
    asked_by="test",
    asked_at=datetime(2026, 3, 2, tzinfo=UTC),
    phase=DONE,
    ids=3,
)


@pytest.mark.parametrize(
    ("phase", "listed", "expected"),
    [(DONE, 3, DONE), (DONE, 0, ASKED), (DONE, 2, ASKED), (DONE, 4, ASKED), (REMOVED, 4, ASKED), (ASKED, 4, ASKED)],
)
async def test_erasure_begins_anew_where_its_ids_are_others_than_noted(
    monkeypatch: pytest.MonkeyPatch, phase: str, listed: int, expected: str
) -> None:
    kept = [replace(ERASURE, phase=phase)]

    class Kept:
        def __init__(self, *_: object) -> None: ...

        async def change(self, _: str, change: Callable[[Erasure], Erasure]) -> None:
            kept.append(change(kept[-1]))

    async def counts() -> dict[str, int]:
        return {ERASURE.erasure_id: listed} if listed else {}

    async def look() -> list[Erasure]:
        return [kept[-1]]

    monkeypatch.setattr(worker, "Bucket", Kept)
    none: Any = None
    tombstones, erased = SimpleNamespace(look=look), SimpleNamespace(counts=counts)
    stores: dict[str, Any] = {"tombstones": tombstones, "erased": erased}
    eraser = Eraser(
        bus=none,
        ledger=none,
        generations=none,
        streams=none,
        archives=none,
        consumers={},
        tables={},
        now=none,
        monotonic=lambda: 0.0,
        settle_s=1.0,
        **stores,
    )
    await eraser._begin_anew()  # pyright: ignore[reportPrivateUsage]
    assert kept[-1].phase == expected
