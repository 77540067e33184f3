"""Alerts on rewards: they open patterns that windows do not test, each once, beside those that windows bear out."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace

from ratchet.analyst.domain.patterns import Seen, pattern_id_of
from ratchet.bus.testing.broker import Killed
from ratchet.core.contract import Alert, LearningEvent
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from tests.support.analyst_world import ROLE, START, AnalystWorld, pattern
from tests.support.drift_worlds import Planted, alerts, rewards

HOUR = timedelta(hours=1)
JUDGE = (Trigger(attribute="component", value="efficiency"),)
DIVERGED = pattern_id_of(ROLE, "behavior", "component_diverged", "reward", JUDGE)


def raised(**planted: float) -> Alert:
    """What the reward computer itself raises where this is planted in its rewards."""
    ((_, _, watch),) = islice(alerts(rewards(1, 1100, Planted(600, planted))), 1)
    assert watch.alert is not None
    return replace(watch.alert, at=START + HOUR)


async def opened(*alerts: Alert) -> tuple[AnalystWorld, list[Pattern]]:
    world = AnalystWorld()
    world.raised = [*alerts]
    await world.runs().run(ROLE)
    return world, await world.patterns()


@pytest.mark.parametrize(
    ("planted", "finding", "measure", "action"),
    [
        ({"efficiency": 0.15}, "component_diverged", "reward", "reward_weight"),
        ({"judge": -0.1}, "component_fell", "reward", "note"),
        ({"length": 0.4}, "longer_answers", "answer_chars", "note"),
        ({"calls": 1.0}, "calls_rose", "calls", "note"),
        ({"task_completion": -0.15, "efficiency": -0.15, "judge": -0.15}, "reward_fell", "reward", "training"),
    ],
)
async def test_a_warning_opens_a_pattern(planted: dict[str, float], finding: str, measure: str, action: str) -> None:
    alert = raised(**planted)
    _, (warned,) = await opened(alert)
    assert (warned.finding, warned.effect.measure, warned.action, warned.alert_id) == (
        finding,
        measure,
        action,
        alert.alert_id,
    )
    assert (warned.confidence, warned.p_value) == (None, None)
    assert warned.statement == f"By an alert, which no windows tested: {alert.summary}".replace("`", "'")
    assert len(warned.evidence) == 20
    assert warned.count >= 20


@pytest.mark.parametrize("changes", [{"cleared": True}, {"severity": "info"}, {"labels": {"metric": "length"}}])
async def test_what_is_over_or_good_opens_none(changes: dict[str, Any]) -> None:
    _, warned = await opened(replace(raised(length=0.4), **changes))
    assert warned == []


async def test_a_warning_opens_its_pattern_once_where_no_run_is_tested() -> None:
    world = AnalystWorld()
    world.trajectories, world.raised = (20, 20), [raised(length=0.4)]
    first, again = await world.runs().run(ROLE), await world.runs().run(ROLE)
    (warned,) = await world.patterns()
    assert (first.opened, first.known, again.opened, again.known) == ([warned.pattern_id], [], [], first.opened)
    assert first.note is not None
    assert (warned.opened_at, warned.seen_at) == (START + HOUR, START + HOUR)
    assert [event.what for event in world.bus.published(LearningEvent)] == ["pattern_opened"]


async def test_a_warning_after_windows_were_looked_at_opens_its_pattern() -> None:
    world, _ = await opened()
    world.raised = [raised(length=0.4)]
    answer = await world.runs().run(ROLE)
    assert (len(answer.opened), len(world.asked)) == (1, 1)


async def test_an_untested_run_that_is_killed_leaves_nothing_half_done() -> None:
    whole = AnalystWorld()
    whole.trajectories, whole.raised = (20, 20), [raised(length=0.4)]
    await whole.runs().run(ROLE)
    for number in range(1, whole.broker.faults.writes + 1):
        world = AnalystWorld()
        world.trajectories, world.raised, world.broker.faults.at = whole.trajectories, whole.raised, number
        with pytest.raises(Killed):
            await world.runs().run(ROLE)
        await world.runs().run(ROLE)
        assert await world.patterns() == await whole.patterns()
        assert [event.event_id for event in world.bus.published(LearningEvent)] == [
            event.event_id for event in whole.bus.published(LearningEvent)
        ]
    assert whole.broker.faults.writes == 4


@pytest.mark.parametrize(
    ("rises", "there", "gone"),
    [(True, (10.0, 50.0), (-50.0, 10.0)), (False, (-50.0, -10.0), (-10.0, 50.0))],
)
async def test_a_warning_whose_mean_went_the_other_way_keeps_its_direction(
    rises: bool, there: tuple[float, float], gone: tuple[float, float]
) -> None:
    """A few extreme values may move the mean against the ranks."""
    alert = raised(length=0.4 if rises else -0.4)
    assert alert.labels is not None
    against = {"before": alert.labels["after"], "after": alert.labels["before"]}
    world, (warned,) = await opened(replace(alert, labels={**alert.labels, **against}))
    world.raised = []
    for (low, high), state in ((there, "open"), (there, "open"), (gone, "open"), (gone, "closed")):
        effect = Effect(measure="answer_chars", value=(low + high) / 2, low=low, high=high)
        world.seen = {warned.pattern_id: Seen(share=1.0, count=300, effect=effect)}
        world.now += HOUR
        await world.runs().run(ROLE)
        assert [each.state for each in await world.patterns()] == [state]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"rises": True}},
        {"labels": {"metric": "length", "rises": True, "before": 1.0, "after": 2.0, "trajectories": -1}},
        {"at": (START + HOUR).replace(tzinfo=None)},
        {"role": "other"},
    ],
)
async def test_an_alert_that_is_damaged_or_anothers_opens_nothing(changes: dict[str, Any]) -> None:
    _, (warned,) = await opened(replace(raised(length=0.4), **changes), raised(calls=1.0))
    assert warned.finding == "calls_rose"


async def test_an_alert_is_no_discovery_of_mining() -> None:
    world, _ = await opened(raised(length=0.4))
    looked = await world.store.looked(ROLE)
    assert looked is not None
    assert looked.value.discoveries == 0


async def test_a_claim_that_windows_bear_out_keeps_their_numbers() -> None:
    world = AnalystWorld()
    world.raised = [raised(efficiency=0.15)]
    mined = pattern(triggers=JUDGE, finding="component_diverged", kind="behavior", pattern_id=DIVERGED)
    world.claims = [mined]
    await world.runs().run(ROLE)
    world.now, world.claims = world.now + HOUR, []
    await world.runs().run(ROLE)
    (warned,) = await world.patterns()
    assert (warned.statement, warned.p_value, warned.seen_at) == (mined.statement, mined.p_value, START + 3 * HOUR)


async def test_a_pattern_of_an_alert_that_is_over_closes_and_stays_closed() -> None:
    alert = raised(efficiency=0.15)
    world, (warned,) = await opened(alert)
    gone = Effect(measure="reward", value=0.0, low=-0.01, high=0.01)
    world.raised, world.seen = [], {warned.pattern_id: Seen(share=1.0, count=300, effect=gone)}
    for _ in range(3):
        world.now += HOUR
        await world.runs().run(ROLE)
    world.raised = [replace(alert, at=world.now - HOUR)]
    await world.runs().run(ROLE, asked=True)
    (closed,) = await world.patterns()
    assert closed.state == "closed"
