"""Days of the audit log go to the object store once they are over, and heads that others stand for are removed."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from nacl.signing import SigningKey

from ratchet.bus.message import decode
from ratchet.bus.testing import FakeBroker, FakeBus, FakeClock
from ratchet.core.contract.audit import AuditEntry, AuditHead
from ratchet.core.rules.audit_check import ChainCheck
from ratchet.core.rules.audit_heads import signed_head
from ratchet.core.service.audit import Act, AuditLog, By
from ratchet.core.service.contracts import load_contracts
from ratchet.trajectory_collector.audit_archive import AuditArchive

KEY = SigningKey(b"k" * 32)


class Store:
    """What an `AuditStore` keeps, in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[date, str], list[bytes]] = {}
        self.signed: dict[str, AuditHead] = {}

    def days(self) -> list[tuple[date, str, str]]:
        return sorted((day, program, f"{day}/{program}") for day, program in self.kept)

    def keep_day(self, day: date, program: str, entries: list[bytes]) -> None:
        self.kept[day, program] = entries

    def heads(self) -> list[tuple[str, AuditHead | None]]:
        return [*self.signed.items()]

    def remove_head(self, uri: str) -> None:
        del self.signed[uri]


async def test_days_that_are_over_are_copied_and_the_chain_is_whole() -> None:
    clock, store = FakeClock(), Store()
    bus = FakeBus(FakeBroker(load_contracts(), clock))
    logs = [AuditLog(bus, program) for program in ("console", "cli")]
    archive: Any = AuditArchive(bus, store, clock)  # type: ignore[arg-type]  # its store is in memory
    for number in range(6):
        for log in logs:
            entry = await log.record(Act("promote", By("ann")))
            store.signed[f"{log.service}-{number}"] = signed_head(entry, KEY, clock())
        clock.advance(timedelta(hours=12).total_seconds())
        await archive.tick()
    clock.advance(timedelta(hours=2).total_seconds())
    await archive.tick()
    archived = {day for day, _ in store.kept}
    assert clock().date() not in archived
    assert len(archived) == 3
    check = ChainCheck("console")
    for (_, program), bodies in sorted(store.kept.items()):
        if program == "console":
            for body in bodies:
                check.add_archived(decode(body, AuditEntry))
    for entry in bus.published(AuditEntry):
        if entry.service == "console":
            check.add_streamed(entry)
    check.end([head for head in store.signed.values() if head.service == "console"], set())
    assert (check.entries, check.problems) == (6, [])
    assert sorted(store.signed) == ["cli-4", "cli-5", "console-4", "console-5"]  # 5: of a day that is not over


async def test_head_whose_entry_is_missing_is_kept_as_the_evidence_that_it_is() -> None:
    clock, store = FakeClock(), Store()
    bus = FakeBus(FakeBroker(load_contracts(), clock))
    log = AuditLog(bus, "console")
    entries = [await log.record(Act("promote", By("ann"))) for _ in range(3)]
    store.signed = {str(entry.number): signed_head(entry, KEY, clock()) for entry in entries}
    bus.broker.streams["RL_AUDIT"].remove(3)
    clock.advance(timedelta(days=2).total_seconds())
    archive: Any = AuditArchive(bus, store, clock)  # type: ignore[arg-type]  # as above
    await archive.tick()
    assert sorted(store.signed) == ["2", "3"]
