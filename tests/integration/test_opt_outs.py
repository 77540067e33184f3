"""Opting out at a real broker: what is sent of someone all the same is not stored, and what was stored is erased."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.client import AsyncClient
from ratchet.client.settings import ClientSettings
from ratchet.core.contract import OptOut
from ratchet.core.contract.erasure import AGENT, TRAJECTORY, USER, Erasure
from ratchet.core.contract.opt_out import EVERY_ROLE
from ratchet.core.errors import Rejected
from ratchet.core.rules.access import RoleSet
from ratchet.core.rules.opt_outs import key_of
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.audit import Act
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erasures import ask_erasure
from ratchet.rl_coordinator.opt_outs import opt_outs
from tests.integration.test_erasure import (
    ANN,
    ANNA,
    PROBE,
    balanced,
    build,
    complete,
    messages_of,
    messages_with,
    rows_with,
    settings_of,
)
from tests.support.messages import AT
from tests.support.running import connected, prepared_warehouse, running, running_app

KEY = "key of users"
MIA, MIAM = (user_ref(KEY, name) or "" for name in ("mia", "miam"))


def opt_out(kind: str, ref: str, role: str = "support", *, is_over: bool = False) -> OptOut:
    return OptOut(opt_out_id=str(uuid.uuid4()), kind=kind, ref=ref, at=AT, role=role, is_over=is_over)


async def given(bus: Bus) -> Bus:
    return bus


@dataclass
class Followed:
    """A service that follows the bucket, and what the coordinator asked to be erased."""

    bus: Bus
    known: KnownOptOuts
    erasures: list[Erasure]
    acts: list[Act]
    """For the audit log."""

    async def covers(self, kind: str, ref: str, role: str = "support", *, to_be: bool = True) -> bool:
        """Whether it comes to heed this, or not to."""

        async def is_so() -> bool:
            return self.known.covers(role, [(kind, ref)]) is to_be

        return await eventually(is_so)

    async def asked_for_two(self) -> list[tuple[str, str | None]]:
        """What is to be erased, once two erasures are asked for."""
        return [(each.kind, each.role) for each in self.erasures] if len(self.erasures) > 1 else []


@asynccontextmanager
async def followed(bus: Bus) -> AsyncIterator[Followed]:
    here = Followed(bus, KnownOptOuts(partial(given, bus)), [], [])

    async def note(erasure: Erasure) -> None:
        here.erasures.append(erasure)

    async with running(opt_outs(bus, note, here.acts.append), here.known):
        await here.known.is_read.wait()
        yield here


async def test_opting_out_reaches_who_follows_and_opting_in_too(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, followed(bus) as here:
        one, agent = opt_out(USER, MIA), opt_out(AGENT, "support-7", EVERY_ROLE)
        await bus.publish_all([one, agent, opt_out(TRAJECTORY, "t-1")])
        assert await here.covers(USER, MIA)
        assert await here.covers(AGENT, "support-7", "planner")
        assert await here.covers(TRAJECTORY, "t-1")
        others = [(USER, MIAM), (USER, MIA[:-1]), (AGENT, "support-70"), (AGENT, MIA)]
        assert not any(here.known.covers("support", [other]) for other in others)
        assert not here.known.covers("planner", [(USER, MIA)])
        asked = await eventually(here.asked_for_two)
        assert asked == [(USER, "support"), (TRAJECTORY, "support")]
        assert here.erasures[0].erasure_id == one.opt_out_id
        assert [(act.name, act.role, act.objects) for act in here.acts[:2]] == [
            ("opt_out", "support", [key_of(one)]),
            ("opt_out", None, [key_of(agent)]),
        ]
        await bus.publish(opt_out(USER, MIA, is_over=True))
        assert await here.covers(USER, MIA, to_be=False)
        total, kept = await here.known.kept(10)
        assert (total, [entry.kind for _, entry in kept]) == (2, [AGENT, TRAJECTORY])
        total, kept = await here.known.kept(10, RoleSet(frozenset({"planner"})))
        assert (total, [key for key, _ in kept]) == (1, [key_of(agent)])
        assert (await bus.extent("RL_OPT_OUTS")).first > (await bus.extent("RL_OPT_OUTS")).last  # it forgets who it was


async def test_opting_out_is_read_by_who_begins_later(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        async with followed(bus) as here:
            await bus.publish_all([opt_out(USER, MIA), opt_out(USER, MIAM), opt_out(USER, MIAM, is_over=True)])
            assert await here.covers(USER, MIA)
            assert await here.covers(USER, MIAM, to_be=False)
        later = KnownOptOuts(partial(given, bus))
        async with running(later):
            await later.is_read.wait()
            assert [later.covers("support", [(USER, ref)]) for ref in (MIA, MIAM)] == [True, False]


async def test_what_comes_of_who_opted_out_is_not_stored_and_ledger_is_even(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        asked, acts = partial(ask_erasure, bus), list[Act]()
        collecting = running_app(build(settings_of(shared_settings)))
        async with collecting as collector, running(opt_outs(bus, asked, acts.append)):
            await bus.publish_all(messages_of(ANNA, "two"))
            await eventually(lambda: complete(warehouse, ANNA))
            (known,) = [part for part in collector.components if isinstance(part, KnownOptOuts)]
            await bus.publish(opt_out(USER, ANN))

            async def is_heeded() -> bool:
                return known.covers("support", [(USER, ANN)])

            await eventually(is_heeded)
            runs, about_them = messages_of(ANN, "one")[:4], messages_of(ANN, "one")[4:]
            await bus.publish_all(runs)
            await eventually(lambda: balanced(warehouse, 12))
            await bus.publish_all(about_them)
            await eventually(lambda: balanced(warehouse, 15))
            assert await rows_with(warehouse, f'{PROBE} {ANN}"') == {}
            assert await complete(warehouse, ANNA)
        assert await messages_with(bus, f'{PROBE} {ANN}"') == 0


async def test_client_keeps_back_what_is_about_who_opted_out_elsewhere(shared_settings: SharedSettings) -> None:
    settings = ClientSettings(shared=shared_settings, user_key=KEY)
    async with connected(shared_settings) as bus, followed(bus) as here:
        async with AsyncClient("one", role="support", settings=settings) as first:
            first.opt_out(user="mia")
            assert await first.flush(10)
        assert await here.covers(USER, MIA)
        async with AsyncClient("two", role="support", settings=settings) as other:
            ids = list[str]()
            for user in ("mia", "miam"):
                async with other.trajectory(task_id="t", user_id=user) as trajectory:
                    trajectory.turn(observation="hi", action="ho")
                other.feedback(trajectory.trajectory_id, thumbs=True)
                ids.append(trajectory.trajectory_id)
            other.preference("which?", "this", "that", rater="mia")
            assert await other.flush(10)
            assert (other.stats.opted_out, other.stats.published) == (3, 2)
        assert await messages_with(bus, ids[0]) == 0
        assert await messages_with(bus, ids[1]) == 2


@pytest.mark.parametrize("asked", [{}, {"user": "a", "agent": "b"}, {"user": ""}])
async def test_client_refuses_to_opt_no_one_out(shared_settings: SharedSettings, asked: dict[str, str]) -> None:
    async with AsyncClient("one", settings=ClientSettings(shared=shared_settings, user_key=KEY)) as client:
        with pytest.raises(Rejected, match="exactly one"):
            client.opt_out(**asked)
