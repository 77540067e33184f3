"""Runs: which windows are looked at, what becomes of patterns over runs, and what a kill leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from ratchet.analyst import metrics
from ratchet.analyst.domain import looking
from ratchet.analyst.domain.looking import Pending
from ratchet.analyst.domain.patterns import MOST_OPEN, Seen
from ratchet.analyst.domain.windows import windows
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.runs import LOOKED_AT
from ratchet.bus.kv import Bucket
from ratchet.bus.testing.broker import Killed
from ratchet.core.contract import LearningEvent
from ratchet.core.contract.http.analyst import AnalysisOut
from ratchet.core.contract.learning import PATTERNS, Effect, Pattern
from ratchet.core.errors import Unreadable
from tests.support.analyst_world import POLICY, ROLE, START, AnalystWorld, pattern

HOUR = timedelta(hours=1)
NEWER = f"{ROLE}@4-5e6f7a8b"
THERE = Seen(share=0.25, count=75, effect=Effect(measure="failure", value=0.4, low=0.3, high=0.5))
GONE = Seen(share=0.01, count=3, effect=Effect(measure="failure", value=0.0, low=-0.1, high=0.1))


async def test_a_pattern_opens_with_its_steps_in_the_trail() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    answer = await world.runs().run(ROLE)
    assert (answer.since, answer.until) == (START, START + 2 * HOUR)
    assert answer.opened == [pattern().pattern_id]
    assert await world.patterns() == [pattern(opened_under=POLICY)]
    events = world.bus.published(LearningEvent)
    assert [event.what for event in events] == ["windows_read", "feedback_counted", "run", "pattern_opened"]
    assert [event.phase for event in events] == [
        *("monitoring", "feedback_collection", "analysis", "pattern_identification")
    ]


async def test_windows_that_were_looked_at_are_not_mined_again() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    first = await world.runs().run(ROLE)
    again = await world.runs().run(ROLE)
    assert (first.opened, first.known) == ([pattern().pattern_id], [])
    assert (again.opened, again.known, again.note) == ([], first.opened, LOOKED_AT)
    assert len(world.asked) == 1


async def test_a_run_tells_new_patterns_from_known_ones() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    world.now += HOUR
    world.claims = [pattern(), pattern("orders")]
    answer = await world.runs().run(ROLE)
    assert (answer.opened, answer.known) == ([pattern("orders").pattern_id], [pattern().pattern_id])


async def test_a_run_over_few_users_explains_why_nothing_opens() -> None:
    world = AnalystWorld()
    world.subjects = (1, 20)
    answer = await world.runs().run(ROLE)
    assert answer.note is not None
    assert "of 1 and 20 users or sessions only" in answer.note


async def test_too_few_trajectories_are_reported_and_not_mined() -> None:
    world = AnalystWorld()
    world.trajectories = (4, 6)
    answer = await world.runs().run(ROLE)
    assert answer.note is not None
    assert answer.note.startswith("too few trajectories to tell: 4 and 6")
    assert (world.asked, world.bus.published(LearningEvent)) == ([], [])


async def test_a_pattern_keeps_its_identity_and_closes_with_the_stable_version() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    world.now += HOUR
    world.claims = [pattern(at=START + 3 * HOUR, share=0.4, trend=(0.4,))]
    assert (await world.runs().run(ROLE)).opened == []
    (again,) = await world.patterns()
    assert (again.opened_at, again.seen_at, again.trend) == (START, START + 3 * HOUR, (0.3, 0.4))
    world.claims, world.seen, world.policy = [], {again.pattern_id: GONE}, NEWER
    world.now += HOUR
    assert (await world.runs().run(ROLE)).closed == []
    world.now += HOUR
    assert (await world.runs().run(ROLE)).closed == [again.pattern_id]
    (closed,) = await world.patterns()
    assert (closed.state, closed.closed_by, closed.closed_at) == ("closed", NEWER, START + 5 * HOUR)


async def test_a_pattern_that_is_measured_again_stays_open() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    world.claims, world.seen = [], {pattern().pattern_id: THERE}
    for _ in range(4):
        world.now += HOUR
        await world.runs().run(ROLE)
    (open_one,) = await world.patterns()
    assert (open_one.state, open_one.seen_at, open_one.trend) == ("open", START + 6 * HOUR, (0.3, *[0.25] * 4))


async def test_a_dismissed_pattern_stays_dismissed() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    entry = await world.store.get(ROLE, pattern().pattern_id)
    assert entry is not None
    dismissed = replace(entry.value, state="dismissed", reason="known")
    await world.store.put(dismissed, entry.revision)
    world.now += HOUR
    assert (await world.runs().run(ROLE)).opened == []
    assert await world.patterns() == [dismissed]


async def test_clusters_of_nearly_the_same_words_are_one() -> None:
    world = AnalystWorld()
    terms = ("refund", "late", "invoice", "week")
    world.claims = [pattern(kind="failure_cluster", terms=terms)]
    await world.runs().run(ROLE)
    world.now += HOUR
    other = pattern(kind="failure_cluster", terms=(*terms[:3], "bank"), pattern_id="0" * 32)
    world.claims = [other]
    assert (await world.runs().run(ROLE)).opened == []
    assert [each.pattern_id for each in await world.patterns()] == [pattern().pattern_id]


async def test_no_more_patterns_open_than_people_can_read() -> None:
    world = AnalystWorld()
    world.claims = [pattern(f"agent-{number}", reward_cost=float(number)) for number in range(MOST_OPEN + 2)]
    answer = await world.runs().run(ROLE)
    assert (len(answer.opened), answer.note and answer.note[:15]) == (MOST_OPEN, "2 more patterns")
    assert min(each.reward_cost for each in await world.patterns()) == 2.0


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_kill_at_any_write_repeats_nothing_that_counts(after_effect: bool) -> None:
    whole = AnalystWorld()
    whole.claims = [pattern(), pattern("orders")]
    expected = await whole.runs().run(ROLE)
    steps = {event.event_id for event in whole.bus.published(LearningEvent)}
    for number in range(1, whole.broker.faults.writes + 1):
        world = AnalystWorld()
        world.claims = whole.claims
        world.broker.faults.at, world.broker.faults.after_effect = number, after_effect
        with pytest.raises(Killed):
            await world.runs().run(ROLE)
        again = await world.runs().run(ROLE)
        assert {*again.opened, *again.known} == {*expected.opened}
        assert await world.patterns() == await whole.patterns()
        assert {event.event_id for event in await Trail(world.bus).read(ROLE)} == steps
        looked = await world.store.looked(ROLE)
        assert looked is not None
        assert (looked.value.discoveries, looked.value.pending) == (2, None)
    assert whole.broker.faults.writes == 9


async def test_of_two_that_look_at_the_same_the_run_counts_once() -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    answers = await asyncio.gather(*(world.runs().run(ROLE) for _ in range(2)))
    assert {(*answer.opened, *answer.known) for answer in answers} == {(pattern().pattern_id,)}
    looked = await world.store.looked(ROLE)
    assert looked is not None
    assert looked.value.discoveries == 1
    assert len({event.event_id for event in world.bus.published(LearningEvent)}) == 4


async def test_runs_that_are_asked_for_end_with_their_share() -> None:
    world = AnalystWorld()
    for _ in range(looking.ASKED_FOR):
        world.now += timedelta(minutes=1)
        assert (await world.runs().run(ROLE, asked=True)).note is None
    world.now += timedelta(minutes=1)
    refused = await world.runs().run(ROLE, asked=True)
    assert refused.note is not None
    assert refused.note.startswith("all 100 runs that may be asked for are spent")
    world.now += HOUR
    assert (await world.runs().run(ROLE)).note is None
    by_the_clock, clock_only = world.asked[-1].alpha, AnalystWorld()
    await clock_only.runs().run(ROLE)
    assert by_the_clock == pytest.approx(clock_only.asked[-1].alpha, rel=0.001)
    world.now += looking.HORIZON
    assert (await world.runs().run(ROLE, asked=True)).note is None


ANSWER = AnalysisOut(
    role=ROLE,
    since=START,
    middle=START,
    until=START,
    trajectories=[0, 0],
    tested=0,
    opened=[],
    known=[],
    closed=[],
    note=None,
)


@pytest.mark.parametrize("lengths", [[1], [24], [28 * 24], [24, 1], [28 * 24, 1, 1, 24], [7 * 24, 1]])
def test_a_horizon_of_any_runs_spends_no_more_than_its_level(lengths: list[int]) -> None:
    """By the clock lengths follow one another in turn, as traffic comes and goes; people ask once a day and more."""
    looked, spent, last = looking.at(None, START), [0.0, 0.0], START - HOUR
    pending = Pending()
    for hour in range(24 * 90):
        now = START + hour * HOUR
        chosen = windows(lengths[hour % len(lengths)] * HOUR, now)
        for asked in (False, True):
            if looking.refusal(looked, asked=asked) or (not asked and chosen.until <= last):
                continue
            last = last if asked else chosen.until
            part = looking.part_of(looked, chosen, asked=asked)
            assert part > 0
            spent[asked] += part
            looked = looking.after(looked, chosen, ANSWER, pending, asked=asked)
    assert spent[True] == pytest.approx(looking.ASKED_SHARE)
    assert looking.ASKED_SHARE + spent[False] <= 1.0 + 1e-9
    assert spent[False] > 0.5 * (1 - looking.ASKED_SHARE)


def test_hourly_runs_of_a_horizon_have_equal_parts() -> None:
    looked, parts = looking.at(None, START), list[float]()
    for hour in range(24 * 90):
        chosen = windows(HOUR, START + hour * HOUR + timedelta(minutes=10))
        parts.append(looking.part_of(looked, chosen, asked=False))
        looked = looking.after(looked, chosen, ANSWER, Pending(), asked=False)
    assert min(parts) == pytest.approx(max(parts))
    assert min(parts) == pytest.approx((1 - looking.ASKED_SHARE) / 2161)


UNCLEAR = Seen(share=0.01, count=3, effect=Effect(measure="failure", value=0.2, low=-0.1, high=0.5))
NO_OUTCOMES = Seen(share=0.3, count=90)
NO_MATCH = Seen(share=0.0, count=0)


@pytest.mark.parametrize(
    ("seen", "state"), [(UNCLEAR, "open"), (NO_OUTCOMES, "open"), (NO_MATCH, "closed"), (GONE, "closed")]
)
async def test_a_pattern_closes_on_evidence_of_its_absence_alone(seen: Seen, state: str) -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    world.claims, world.seen = [], {pattern().pattern_id: seen}
    for _ in range(4):
        world.now += HOUR
        await world.runs().run(ROLE)
    (left,) = await world.patterns()
    assert (left.state, left.seen_at) == (state, START)


async def test_dismissed_patterns_are_known_to_mining() -> None:
    world = AnalystWorld()
    world.claims = [pattern(state="dismissed")]
    await world.store.put(pattern(state="dismissed"), None)
    await world.runs().run(ROLE)
    assert world.asked[-1].dismissed == (pattern().pattern_id,)


@pytest.mark.parametrize(("later", "closed_by"), [(POLICY, None), (NEWER, NEWER)])
async def test_only_a_policy_that_came_since_has_closed_a_pattern(later: str, closed_by: str | None) -> None:
    world = AnalystWorld()
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    world.claims, world.seen, world.policy = [], {pattern().pattern_id: GONE}, later
    for _ in range(3):
        world.now += HOUR
        await world.runs().run(ROLE)
    (closed,) = await world.patterns()
    assert (closed.state, closed.closed_by) == ("closed", closed_by)


async def test_a_run_under_a_clock_that_was_ahead_silences_no_role() -> None:
    world = AnalystWorld()
    world.now += timedelta(days=400)
    await world.runs().run(ROLE)
    world.now -= timedelta(days=400)
    answer = await world.runs().run(ROLE)
    assert (answer.until, len(world.asked)) == (START + 2 * HOUR, 2)
    looked = await world.store.looked(ROLE)
    assert looked is not None
    assert looked.value.began_at == world.now
    assert looked.value.spent > 0


async def test_a_role_whose_last_look_cannot_be_read_is_looked_at_anew() -> None:
    world = AnalystWorld()
    await Bucket(world.bus, PATTERNS, dict[str, int]).put(f"analyst.looked.{ROLE}", {"spent": 1})
    world.claims = [pattern()]
    assert (await world.runs().run(ROLE)).opened == [pattern().pattern_id]


async def test_trajectories_count_by_the_clock_alone() -> None:
    world = AnalystWorld()
    counted = metrics.EPISODES.labels(ROLE)
    before = counted._value.get()
    await world.runs().run(ROLE)
    world.now += timedelta(minutes=5)
    await world.runs().run(ROLE, asked=True)
    assert counted._value.get() - before == 300


async def test_a_pattern_under_the_key_of_another_role_is_none_of_it() -> None:
    world = AnalystWorld()
    known = pattern()
    await Bucket(world.bus, PATTERNS, Pattern).put(f"other.{known.pattern_id}", known)
    assert await world.patterns() == []
    with pytest.raises(Unreadable):
        await world.store.get("other", known.pattern_id)
