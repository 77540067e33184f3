"""Stable policies are asked again whether a template shows them tools; faults of engines change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import START, FakeBus
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.leadership import NotLeading
from ratchet.canary_deployer.template_watch import TemplateWatch
from ratchet.core.contract import Alert
from ratchet.core.contract.state import POLICIES, PolicyStage, PolicyVersion, Route
from ratchet.core.errors import Unavailable
from tests.support.canary_world import ROLE, FakeLead, policy, served
from tests.support.fake_bus import fake_bus
from tests.support.scoring_engine import Fleet, ScoringEngine, refused

STABLE = policy(3).name


@dataclass
class World:
    """A role with a stable policy on two replicas."""

    fleet: Fleet = field(default_factory=lambda: Fleet({host: ScoringEngine() for host in "ab"}))
    lead: FakeLead = field(default_factory=FakeLead)
    bus: FakeBus = field(default_factory=fake_bus)

    def __post_init__(self) -> None:
        self.policies = KvPolicies(
            Bucket(self.bus, POLICIES, Route), Bucket(self.bus, POLICIES, PolicyVersion), self.lead
        )
        self.watch = self.started()

    def started(self) -> TemplateWatch:
        """A deployer that remembers nothing yet."""
        return TemplateWatch(
            engines=self.fleet.served(),
            policies=self.policies,
            publish=self.bus.publish_all,
            lead=self.lead,
            announcer=Announcer("http://gateway"),
            now=lambda: START,
        )

    async def serving(self, takes_tools: bool | None) -> World:
        """Stable, as its gate saw it."""
        stable = policy(3, stage=PolicyStage.STABLE, takes_tools=takes_tools)
        await Bucket(self.bus, POLICIES, PolicyVersion).create(f"{ROLE}.3", stable)
        await self.policies.change_route(ROLE, lambda _: Route(role=ROLE, stable=served(3), next_version=4))
        return self

    def templates(self, *shows_tools: bool) -> None:
        """Of the replicas, from now on."""
        for engine, shown in zip(self.fleet.engines.values(), shows_tools, strict=True):
            engine.without_tools = set() if shown else {STABLE}

    async def known(self) -> bool | None:
        return (await self.policies.version(ROLE, 3)).takes_tools

    async def swept(self, times: int = 1) -> bool | None:
        """What the registry has after so many sweeps."""
        for _ in range(times):
            await self.watch.sweep()
        return await self.known()

    def alerts(self) -> list[tuple[bool, str]]:
        return [(one.cleared, one.summary) for one in self.bus.published(Alert)]


async def test_a_template_that_was_mended_clears_what_the_gate_saw_and_one_that_broke_sets_it() -> None:
    here = await World().serving(takes_tools=False)
    assert await here.swept() is False
    assert await here.swept() is True
    here.templates(False, False)
    assert await here.swept() is True
    assert await here.swept() is False
    (cleared, mended), (alerted, broke) = here.alerts()
    assert (cleared, alerted) == (True, False)
    assert mended.endswith(
        f"shows {STABLE}, which serves {ROLE}, tools again: the gateway passes on calls that offer some"
    )
    assert "no tools: the gateway answers calls that offer some with 400, until the engine is started with" in broke


@pytest.mark.parametrize("takes_tools", [True, False])
async def test_what_is_as_it_was_is_neither_written_nor_announced(takes_tools: bool) -> None:
    here = await World().serving(takes_tools)
    here.templates(takes_tools, takes_tools)
    assert await here.swept(3) is takes_tools
    assert here.alerts() == []


async def test_a_policy_of_an_older_deployer_is_asked_too_and_tools_that_it_takes_are_no_news() -> None:
    here = await World().serving(takes_tools=None)
    assert await here.swept(2) is True
    assert here.alerts() == []


async def test_what_one_sweep_saw_is_forgotten_when_the_next_one_sees_another_thing() -> None:
    here = await World().serving(takes_tools=True)
    for shown in (False, True, False, True):
        here.templates(shown, shown)
        assert await here.swept() is True


@pytest.mark.parametrize("known", [True, False])
async def test_replicas_that_differ_change_nothing(known: bool) -> None:
    here = await World().serving(known)
    here.templates(True, False)
    assert await here.swept(3) is known
    assert here.alerts() == []


async def test_a_replica_that_is_away_is_left_out() -> None:
    here = await World().serving(takes_tools=False)
    here.templates(True, False)
    here.fleet.away.add("b")
    assert await here.swept(2) is True


@pytest.mark.parametrize("status", [400, 401, 424, 429, 500, 502, 503])
@pytest.mark.parametrize("known", [True, False])
async def test_no_fault_of_an_engine_changes_anything(known: bool, status: int) -> None:
    here = await World().serving(known)
    here.templates(not known, not known)
    fault = refused(status, "no")
    here.fleet.engines["b"].answers = lambda path, _: fault if path == "/tokenize" else None
    assert await here.swept(3) is known


@pytest.mark.parametrize("known", [True, False])
async def test_an_engine_without_tokenize_leaves_the_word_to_the_others(known: bool) -> None:
    here = await World().serving(known)
    here.templates(not known, not known)
    here.fleet.engines["b"].answers = lambda path, _: refused(404, "no such path") if path == "/tokenize" else None
    assert await here.swept(3) is not known


async def test_a_refusal_of_the_chat_with_tools_alone_is_the_templates_word() -> None:
    here = await World().serving(takes_tools=True)
    for engine in here.fleet.engines.values():
        engine.answers = lambda path, body: (
            refused(400, "no tools") if path == "/tokenize" and "tools" in body else None
        )
    assert await here.swept(2) is False


async def test_where_every_replica_is_away_nothing_changes() -> None:
    here = await World().serving(takes_tools=True)
    here.templates(False, False)
    here.fleet.away.update("ab")
    assert await here.swept(3) is True


async def test_a_deployer_that_leads_no_more_writes_and_announces_nothing() -> None:
    here = await World().serving(takes_tools=True)
    here.templates(False, False)
    await here.swept()
    here.lead.leading = False
    with pytest.raises(NotLeading):
        await here.swept()
    assert (await here.known(), here.alerts()) == (True, [])


async def test_while_alerts_cannot_be_published_nothing_is_written_and_later_both_are() -> None:
    here = await World().serving(takes_tools=True)
    here.templates(False, False)
    await here.swept()
    here.bus.unavailable_at(len(here.bus.faults.log) + 1)
    with pytest.raises(Unavailable):
        await here.watch.sweep()
    assert await here.known() is True
    assert await here.swept(2) is False
    assert len(here.alerts()) == 1
