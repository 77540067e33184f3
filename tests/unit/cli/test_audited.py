"""Acts of commands that no broker takes wait in a file of the stack, and are written before the next one."""

from __future__ import annotations

from pathlib import Path

from ratchet.bus.message import decode
from ratchet.cli.audited import Waiting, record_change


def test_change_without_a_broker_waits_in_a_private_file(tmp_path: Path) -> None:
    record_change(tmp_path, "restore", ["state of yesterday"])
    record_change(tmp_path, "add_broker_user", ["bot", "support"])
    path = tmp_path / "data" / "cli" / "audit.waiting"
    first, second = (decode(line, Waiting) for line in path.read_bytes().splitlines())
    assert (first.act, first.objects[0]) == ("restore", "state of yesterday")
    assert (second.act, second.objects[:2]) == ("add_broker_user", ["bot", "support"])
    assert path.stat().st_mode & 0o777 == 0o600
