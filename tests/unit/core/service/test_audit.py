"""The audit log: a chain of entries, written before what changes something, and soon after what is read."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ratchet.bus.testing import FakeBroker, FakeBus, FakeClock
from ratchet.core.contract.audit import MOST, AuditEntry
from ratchet.core.errors import Conflict, Unavailable
from ratchet.core.rules.audit_check import ChainCheck
from ratchet.core.service.audit import HOUR_S, MOST_READS, Act, AuditLog, By
from ratchet.core.service.contracts import load_contracts

ANN = By("ann", "key_1")


def log_of(bus: FakeBus, clock: list[float] | None = None) -> AuditLog:
    times = clock if clock is not None else [0.0]
    return AuditLog(bus, "console", monotonic=lambda: times[0])


def problems(bus: FakeBus) -> list[tuple[int, str]]:
    check = ChainCheck("console")
    for entry in bus.published(AuditEntry):
        check.add_streamed(entry)
    return [(problem.number, problem.reason) for problem in check.problems]


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus(FakeBroker(load_contracts()))


async def test_entries_of_two_processes_are_one_chain(bus: FakeBus) -> None:
    one, other = log_of(bus), log_of(FakeBus(bus.broker))
    await asyncio.gather(*(log.record(Act("promote", ANN)) for log in (one, other) for _ in range(10)))
    assert [entry.number for entry in bus.published(AuditEntry)] == [*range(1, 21)]
    assert problems(bus) == []


async def test_act_is_in_the_log_before_it_is_done(bus: FakeBus) -> None:
    log = log_of(bus)
    async with log.act(Act("promote", ANN, "support", ["a"])):
        (asked,) = bus.published(AuditEntry)
    assert (asked.act, asked.outcome, asked.actor, asked.key_id) == ("promote", "asked", "ann", "key_1")
    assert (asked.role, asked.objects) == ("support", ["a"])
    assert len(bus.published(AuditEntry)) == 1


async def test_act_that_fails_is_noted_as_failed(bus: FakeBus) -> None:
    with pytest.raises(Conflict):
        async with log_of(bus).act(Act("promote", ANN)):
            raise Conflict("undecided")
    asked, failed = bus.published(AuditEntry)
    assert (failed.outcome, failed.of, failed.status) == ("failed", asked.number, 409)


async def test_act_is_refused_where_the_log_is_full(bus: FakeBus) -> None:
    log, done = log_of(bus), False
    bus.broker.refusing = True
    with pytest.raises(Unavailable, match="the audit log cannot be written: RL_AUDIT: maximum bytes"):
        async with log.act(Act("promote", ANN)):
            done = True
    assert not done
    assert "cannot be written" in (await log.check() or "")
    bus.broker.refusing = False
    async with log.act(Act("promote", ANN)):
        done = True
    assert done
    assert await log.check() is None


async def test_reads_go_on_where_the_log_is_away_and_are_counted(bus: FakeBus) -> None:
    log = log_of(bus)
    bus.broker.go_away()
    for number in range(3):
        log.note(Act("get_trajectory", ANN, objects=[str(number)]))
    await log.flush()
    assert "3 reads or urgent acts are not recorded" in (await log.check() or "")
    bus.broker.come_back()
    log.note(Act("get_trajectory", ANN, objects=["3"]))
    await log.flush()
    read, unrecorded = bus.published(AuditEntry)
    assert read.objects == ["3"]
    assert (unrecorded.outcome, unrecorded.count, unrecorded.actor) == ("unrecorded", 3, "console")
    assert await log.check() is None


async def test_reads_that_are_alike_are_one_entry_a_minute(bus: FakeBus) -> None:
    clock = [0.0]
    log = log_of(bus, clock)
    log.note(Act("get_trajectory", ANN, objects=["first"]))
    await log.flush(60.0)
    for number in range(2 * MOST):
        log.note(Act("get_trajectory", ANN, objects=[f"more-{number}"]))
        clock[0] += 0.5
        await log.flush(60.0)
    clock[0] = 61.0
    await log.flush(60.0)
    first, more = bus.published(AuditEntry)
    assert first.objects == ["first"]
    assert (len(more.objects or []), more.count) == (MOST, 2 * MOST)


async def test_reads_of_one_key_take_few_entries_and_are_all_counted(bus: FakeBus) -> None:
    clock = [0.0]
    log = log_of(bus, clock)
    for number in range(4000):  # as for roles that there are not
        log.note(Act("list_trajectories", ANN, f"role-{number}"))
        if number % 100 == 0:
            clock[0] += 60.0
            await log.flush(60.0)
    log.note(Act("get_trajectory", By("ben", "key_2"), objects=["his"]))
    await log.flush(60.0)
    assert bus.published(AuditEntry)[-1].objects == ["his"]
    assert len(bus.published(AuditEntry)) == MOST_READS + 1
    clock[0] += HOUR_S
    await log.flush(60.0)
    entries = [entry for entry in bus.published(AuditEntry) if entry.key_id == ANN.key_id]
    assert len(entries) == MOST_READS + 1
    assert (entries[-1].act, entries[-1].role) == ("list_trajectories", None)
    assert sum(entry.count or 1 for entry in entries) == 4000
    assert len(log._reads) < 5  # pyright: ignore[reportPrivateUsage]


async def test_chain_goes_on_behind_what_another_process_wrote(bus: FakeBus) -> None:
    """Also where the broker came back from an older copy: the chain goes on from what it has."""
    log = log_of(bus)
    for _ in range(3):
        await log.record(Act("promote", ANN))
    stream = bus.broker.streams["RL_AUDIT"]
    stream.remove(3)
    stream.newest["agent.rl.audit.v1.console"] = 2
    await log.record(Act("pause", ANN))
    assert [entry.act for entry in bus.published(AuditEntry)] == ["promote", "promote", "pause"]
    assert problems(bus) == []


async def test_clock_that_steps_back_breaks_no_chain() -> None:
    clock = FakeClock()
    bus = FakeBus(FakeBroker(load_contracts(), clock))
    log = log_of(bus)
    await log.record(Act("promote", ANN))
    clock.advance(timedelta(days=-2).total_seconds())
    await log.record(Act("promote", ANN))
    assert problems(bus) == []


@pytest.mark.parametrize("name", ["a\nb\x1b[2J", "x" * 10_000, "\u202e"])
async def test_odd_names_are_stored_within_bounds(bus: FakeBus, name: str) -> None:
    await log_of(bus).record(Act("promote", By(name), objects=[name]))
    (entry,) = bus.published(AuditEntry)
    assert entry.actor == name[:256]
    assert problems(bus) == []
