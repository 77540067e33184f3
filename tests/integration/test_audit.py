"""The audit log on a real broker and object store: what no one may do to it, and what shows all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from nats.js.errors import APIError

from ratchet.bus.connection import Bus
from ratchet.core.errors import Unavailable
from ratchet.core.rules.audit_check import ChainCheck
from ratchet.core.service.audit import Act, AuditLog, By
from ratchet.core.stores.audit_store import audit_entries
from ratchet.local.local_stack.broker_users import ADMIN
from tests.support.broker_with_users import BrokerWithUsers, broker_with_users

ANN = By("ann")
PROMOTE = Act("promote", ANN, "support")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithUsers]:
    with broker_with_users(tmp_path_factory.mktemp("audit")) as broker:
        yield broker


@pytest.fixture
async def admin(broker: BrokerWithUsers) -> AsyncIterator[Bus]:
    """With an empty audit log."""
    async with broker.bus(ADMIN) as bus:
        if "RL_AUDIT" not in await bus.missing():
            await bus.nc.jetstream().delete_stream("RL_AUDIT")
        await bus.make_streams()
        yield bus


async def checked(bus: Bus, program: str = "console") -> ChainCheck:
    check = ChainCheck(program)
    async with aclosing(audit_entries(bus)) as entries:
        async for one in entries:
            if one.entry.service == program:
                check.add_streamed(one.entry)
    return check


async def test_processes_of_a_program_write_one_chain_at_once(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus("canary_deployer") as one, broker.bus("canary_deployer") as other:
        logs = [AuditLog(bus, "canary_deployer") for bus in (one, other)]
        await asyncio.gather(*(log.record(PROMOTE) for log in logs for _ in range(25)))
    check = await checked(admin, "canary_deployer")
    assert (check.entries, check.problems) == (50, [])


async def test_chain_of_another_program_takes_no_entry(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus("gateway") as bus:
        with pytest.raises(Unavailable, match=r"may not publish"):
            await AuditLog(bus, "console").record(PROMOTE)
    assert (await checked(admin)).entries == 0


async def test_entries_are_removed_by_none_not_even_the_admin(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus("console") as bus:
        await AuditLog(bus, "console").record(PROMOTE)
    jetstream = admin.nc.jetstream()
    with pytest.raises(APIError):
        await jetstream.delete_msg("RL_AUDIT", 1)
    with pytest.raises(APIError):
        await jetstream.purge_stream("RL_AUDIT")
    assert (await checked(admin)).entries == 1


async def test_stream_that_is_full_refuses_acts_until_it_has_room(broker: BrokerWithUsers, admin: Bus) -> None:
    jetstream = admin.nc.jetstream()
    config = (await jetstream.stream_info("RL_AUDIT")).config
    async with broker.bus("console") as bus:
        log = AuditLog(bus, "console")
        await log.record(PROMOTE)
        config.max_bytes = 10
        await jetstream.update_stream(config)
        with pytest.raises(Unavailable, match="maximum bytes"):
            async with log.act(PROMOTE):
                raise AssertionError("it was done")
        await admin.make_streams()  # with the bounds of the registry
        async with log.act(PROMOTE):
            pass
    check = await checked(admin)
    assert (check.entries, check.problems) == (2, [])


async def test_stream_that_was_deleted_refuses_acts_then_begins_anew(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus("console") as bus:
        log = AuditLog(bus, "console")
        for _ in range(3):
            await log.record(PROMOTE)
        await admin.nc.jetstream().delete_stream("RL_AUDIT")
        with pytest.raises(Unavailable):
            await log.record(PROMOTE)
        await admin.make_streams()
        entry = await log.record(PROMOTE)
    assert (entry.number, entry.previous_hash) == (1, None)  # a head of the third entry tells what is missing


async def test_reader_of_the_log_sees_odd_names_as_they_are(broker: BrokerWithUsers, admin: Bus) -> None:
    name = "ann\r\n\x1b[2J\u202e"
    async with broker.bus("console") as bus:
        await AuditLog(bus, "console").record(Act("promote", By(name), objects=[name]))
    async with aclosing(audit_entries(admin)) as entries:
        (entry,) = [one.entry async for one in entries]
    assert (entry.actor, entry.objects) == (name, [name])
