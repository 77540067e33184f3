"""When an erasure that was done is carried out once more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from ratchet.core.contract.erasure import ASKED, DONE, REMOVED, USER, Erasure
from ratchet.core.datasets.archives import Archives
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
    assert await phase_of(monkeypatch, replace(ERASURE, phase=phase), listed, []) == expected


@pytest.mark.parametrize(("damaged", "expected"), [(["one", "two"], DONE), (["two"], ASKED), ([], ASKED)])
async def test_erasure_goes_on_once_a_damaged_file_is_gone(
    monkeypatch: pytest.MonkeyPatch, damaged: list[str], expected: str
) -> None:
    assert await phase_of(monkeypatch, replace(ERASURE, damaged=["one", "two"]), 3, damaged) == expected


async def phase_of(monkeypatch: pytest.MonkeyPatch, erasure: Erasure, listed: int, damaged: list[str]) -> str:
    """Its phase after the look that is made now and then."""
    kept = [erasure]

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
        archives=cast(Archives, SimpleNamespace(damaged=lambda _: damaged)),
        consumers={},
        tables={},
        now=none,
        monotonic=lambda: 0.0,
        settle_s=1.0,
        **stores,
    )
    await eraser._begin_anew()  # pyright: ignore[reportPrivateUsage]
    return kept[-1].phase
