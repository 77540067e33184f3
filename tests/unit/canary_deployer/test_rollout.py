"""States, moves, stages, verdicts and what follows from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import Facts
from ratchet.canary_deployer.domain.e_processes import ArmMean
from ratchet.canary_deployer.domain.outcomes import Watch
from ratchet.canary_deployer.domain.rollout import (
    MOVES,
    TERMINAL,
    IllegalMove,
    Rollout,
    State,
    Verdict,
    checked_move,
)
from ratchet.canary_deployer.domain.serving import CANDIDATE_STAGE, renewed, settled
from ratchet.canary_deployer.domain.statistics import ArmCounts, Statistics
from ratchet.canary_deployer.domain.strategies import STRATEGIES, chosen
from ratchet.canary_deployer.domain.summary import summary
from ratchet.canary_deployer.domain.trip_wires import Tripped
from ratchet.canary_deployer.domain.verdicts import ITSELF, Decision, decide, waiting_for
from ratchet.canary_deployer.settings import Settings
from ratchet.messages.state import Route
from tests.support.canary_world import policy, quick_rules, served
from tests.support.fake_clock import START, FakeClock

RULES = quick_rules()
FACTS = Facts(policy(2), "http://127.0.0.1:8080")


def take(rollout: Rollout, verdict: Verdict, seconds: float = 0, actor: str = ITSELF) -> Rollout:
    now = START + timedelta(seconds=seconds)
    return decisions.taken(rollout, Decision(verdict, "because", actor), RULES, FACTS, now)


def gating() -> Rollout:
    return decisions.opened(policy(2), served(1), None, Decision(Verdict.START, "new", ITSELF), START)


def running() -> Rollout:
    return take(gating(), Verdict.START)


def with_canary(rollout: Rollout, trajectories: int, **changes: object) -> Rollout:
    """The rollout when so many canary trajectories have finished."""
    statistics = replace(Statistics(canary=ArmCounts(trajectories=trajectories)), **changes)
    return msgspec.structs.replace(rollout, watch=Watch(statistics))


def aged(rollout: Rollout, seconds: float) -> Rollout:
    """The rollout after it was watched for so long."""
    passed = {"stage_age_s": rollout.stage_age_s + seconds, "age_s": rollout.age_s + seconds}
    return msgspec.structs.replace(rollout, **passed)


def proven_tests() -> dict[str, object]:
    """Tests that have all the evidence for promotion."""
    return {name: replace(test, promotion=(5.0,) * 6) for name, test in Statistics().tests.items()}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_move_that_is_not_in_the_table_is_refused(state: State, verdict: Verdict):
    for target in State:
        if target in MOVES.get((state, verdict), frozenset()):
            assert checked_move(state, verdict, target) is target
        else:
            with pytest.raises(IllegalMove, match=f"cannot {verdict} a rollout that is {state}"):
                checked_move(state, verdict, target)


def test_nothing_leads_out_of_a_terminal_state_and_every_other_state_has_a_way_out():
    leaving = {state for (state, _), targets in MOVES.items() if targets != {state}}
    assert leaving.isdisjoint(TERMINAL)
    assert leaving == set(State) - TERMINAL
    assert set(CANDIDATE_STAGE) == set(State)


def test_default_schedule_is_10_25_50_100_at_0_60_120_240_minutes():
    rules = Settings().rules()
    clock, reached = FakeClock(), {0: 0.1}
    rollout = decisions.taken(gating(), Decision(Verdict.START, "go", ITSELF), rules, FACTS, clock())
    for minute in range(1, 300):
        clock.advance(60)
        statistics = replace(Statistics(canary=ArmCounts(trajectories=20 * minute)), tests=proven_tests())
        rollout = aged(msgspec.structs.replace(rollout, watch=Watch(statistics)), 60)
        decision = decide(aged(rollout, rules.lead_s), None, rules)
        if decision is not None and rollout.state is State.RUNNING:
            rollout = decisions.taken(rollout, decision, rules, FACTS, clock())
            reached[minute] = rollout.weight
    assert reached == {0: 0.1, 60: 0.25, 120: 0.5, 240: 0.95}


def test_a_stage_lasts_for_its_time_and_its_trajectories():
    early, late = aged(running(), 59), aged(running(), 61)
    assert waiting_for(with_canary(early, 5), RULES) == ["59 of 60 s in this stage"]
    assert waiting_for(with_canary(late, 4), RULES) == ["4 of 5 canary trajectories in this stage"]
    decision = decide(with_canary(late, 5), None, RULES)
    assert decision is not None
    assert decision.verdict is Verdict.ADVANCE


def test_trajectories_of_an_earlier_stage_do_not_count_for_the_next():
    rollout = take(with_canary(running(), 50), Verdict.ADVANCE, 61)
    assert (rollout.stage, rollout.weight, rollout.stage_base) == (1, 0.25, 50)
    assert waiting_for(aged(rollout, 500), RULES) == ["0 of 5 canary trajectories in this stage"]


def test_no_stage_is_left_while_evidence_leans_towards_rollback():
    worried = {name: replace(test, rollback=(2.0,) * len(test.rollback)) for name, test in Statistics().tests.items()}
    rollout = with_canary(running(), 50, tests=worried)
    assert waiting_for(aged(rollout, 61), RULES) == ["rollback e-value 7.39 below 4"]


def last_stage() -> Rollout:
    second = take(with_canary(running(), 50), Verdict.ADVANCE, 61)
    third = take(with_canary(second, 100), Verdict.ADVANCE, 122)
    return with_canary(third, 200, tests=proven_tests())


def test_promotion_is_decided_in_the_last_stage_only_and_then_soaks():
    first = aged(with_canary(running(), 200, tests=proven_tests()), 60)
    assert decide(first, None, RULES).verdict is Verdict.ADVANCE
    rollout = aged(last_stage(), 60)
    assert decide(rollout, None, RULES).verdict is Verdict.PROMOTE
    soaking = take(rollout, Verdict.PROMOTE, 190)
    assert (soaking.state, soaking.weight) == (State.SOAKING, 0.95)
    assert decide(aged(soaking, 29), None, RULES) is None
    done = take(soaking, decide(aged(soaking, 30), None, RULES).verdict, 220)
    assert (done.state, done.weight) == (State.PROMOTED, 0.0)


def test_every_promotion_metric_must_be_proven():
    tests = proven_tests()
    tests["reward"] = Statistics().tests["reward"]
    rollout = with_canary(last_stage(), 200, tests=tests)
    assert waiting_for(aged(rollout, 500), RULES) == ["promotion e-value of reward 1 of 20"]


def test_a_metric_that_looks_worse_than_its_margin_vetoes_promotion():
    tests = proven_tests()
    tests["latency"] = replace(tests["latency"], stable=ArmMean(10, 5.0), canary=ArmMean(10, 7.0))
    rollout = with_canary(last_stage(), 200, tests=tests)
    assert waiting_for(aged(rollout, 500), RULES) == ["latency is 0.200 worse, the margin is 0.1"]


def test_a_past_alarm_rolls_back_even_if_the_evidence_has_receded():
    alarmed = with_canary(running(), 1, peak_rollback=20.0)
    for rollout in (alarmed, take(alarmed, Verdict.PAUSE), take(alarmed, Verdict.HOLD)):
        assert decide(rollout, None, RULES).verdict is Verdict.ROLL_BACK


def test_a_trip_wire_rolls_back_in_any_state_with_traffic():
    tripped = Tripped("error_rate", "12 % of 50 canary calls")
    decision = decide(running(), tripped, RULES)
    assert decision.verdict is Verdict.ROLL_BACK
    assert decision.reason == "trip wire error_rate: 12 % of 50 canary calls"


def test_undecided_at_the_deadline_is_held():
    decision = decide(aged(running(), 3600), None, RULES)
    assert decision.verdict is Verdict.HOLD


def test_a_new_weight_holds_a_little_later_for_all_gateways_alike():
    rules = quick_rules(lead_s=2.0)
    rollout = decisions.taken(gating(), Decision(Verdict.START, "go", ITSELF), rules, FACTS, START)
    assert [step.at - START for step in rollout.schedule] == [timedelta(seconds=2)]


def test_each_rollout_has_its_own_salt():
    first = running()
    again = decisions.opened(policy(2), served(1), first, Decision(Verdict.START, "again", "ann"), START)
    assert first.salt != again.salt
    assert again.last_hash == first.last_hash


def test_an_operators_promotion_swaps_the_pointer_without_soak():
    assert take(running(), Verdict.PROMOTE, actor="ann").state is State.PROMOTED


def test_blue_green_goes_straight_to_the_soak():
    rollout = msgspec.structs.replace(gating(), strategy="blue_green")
    started = take(rollout, Verdict.START)
    assert (started.state, started.weight) == (State.SOAKING, 0.95)


def test_without_a_hold_back_blue_green_has_nothing_to_watch():
    assert STRATEGIES["blue_green"].enters(soaks=True) is State.SOAKING
    assert STRATEGIES["blue_green"].enters(soaks=False) is State.PROMOTED
    assert STRATEGIES["canary"].enters(soaks=False) is State.RUNNING


@pytest.mark.parametrize(
    ("setting", "improvement", "strategy"),
    [
        ("canary", -0.5, "canary"),
        ("immediate", None, "immediate"),
        ("auto", 0.5, "blue_green"),
        ("auto", 0.05, "blue_green"),
        ("auto", 0.0499, "canary"),
        ("auto", 0.0, "canary"),
        ("auto", None, "canary"),
        ("auto", -0.01, None),
    ],
)
def test_the_strategy_follows_the_improvement_only_if_asked_to(setting, improvement, strategy):
    assert chosen(setting, improvement) == strategy


def test_routes_follow_from_the_state_and_settling_twice_changes_nothing():
    route = Route(role="support", stable=served(1), next_version=3)
    live = settled(route, running())
    assert live.canary is not None
    assert (live.canary.policy, live.stable) == (served(2), served(1))
    assert settled(live, running()) == live
    promoted = settled(live, take(running(), Verdict.PROMOTE, actor="ann"))
    assert (promoted.stable, promoted.previous, promoted.canary) == (served(2), served(1), None)
    assert settled(promoted, take(running(), Verdict.PROMOTE, actor="ann")) == promoted
    back = settled(live, take(running(), Verdict.ROLL_BACK))
    assert (back.stable, back.previous, back.canary) == (served(1), None, None)


def test_only_a_lease_with_traffic_grows():
    route = Route(role="support", stable=served(1))
    live = renewed(route, running())
    again = renewed(live, running())
    assert live.canary is not None
    assert again.canary is not None
    assert again.canary.lease == live.canary.lease + 1
    assert renewed(again, take(running(), Verdict.ROLL_BACK)).canary is None


def test_the_record_survives_its_json():
    rollout = last_stage()
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout


def test_operators_see_what_a_rollout_waits_for_and_words_instead_of_0_of_0():
    shown = summary(running(), RULES)
    assert shown["waiting_for"] == ["0 of 60 s in this stage", "0 of 5 canary trajectories in this stage"]
    assert shown["arms"]["canary"]["error_rate"] == "no calls"
    assert shown["arms"]["canary"]["failure_rate"] == "no trajectories"
