"""Room on a disk, as a service's readiness names it."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.service.files import room_check


async def test_a_disk_with_too_little_room_is_named_and_one_with_enough_is_not(tmp_path: Path) -> None:
    assert await room_check(tmp_path / "not" / "made" / "yet", least=0)() is None
    short = await room_check(tmp_path, least=1 << 60)()
    assert short is not None
    assert f"the disk of {tmp_path} has" in short
