"""States, moves, stages and verdicts; the routes and stages of policies that follow."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from ratchet.bus.testing import START, FakeClock
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.evidence import Evidence
from ratchet.canary_deployer.domain.gating import chosen, state_after_gates
from ratchet.canary_deployer.domain.rollout import (
    ITSELF,
    MOVES,
    TERMINAL,
    Decision,
    IllegalMove,
    Rollout,
    State,
    Verdict,
    checked_move,
)
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.serving import CANDIDATE_STAGE, expected_route, renewed_route
from ratchet.canary_deployer.domain.summary import summary
from ratchet.canary_deployer.domain.trajectories import ArmCounts
from ratchet.canary_deployer.domain.verdicts import decide, waiting_for
from ratchet.canary_deployer.settings import Settings
from ratchet.core.contract import MESSAGES
from ratchet.core.contract.state import Route
from ratchet.core.service.contracts import load_contracts
from tests.support.canary_world import policy, quick_rules, served

RULES = quick_rules()
ANNOUNCER = Announcer("http://127.0.0.1:8080")
CANDIDATE = (policy(2),)


def take(rollout: Rollout, verdict: Verdict, seconds: float = 0, actor: str = ITSELF) -> Rollout:
    now = START + timedelta(seconds=seconds)
    return decisions.apply_decision(rollout, Decision(verdict, "because", actor), RULES, ANNOUNCER, CANDIDATE, now)


def gating() -> Rollout:
    return decisions.new_rollout(policy(2), served(1), None, Decision(Verdict.START, "new", ITSELF), START)


def running() -> Rollout:
    return take(gating(), Verdict.START)


def with_canary(rollout: Rollout, trajectories: int, **changes: object) -> Rollout:
    """The rollout when so many canary trajectories, each of another subject, have settled, all with known outcomes."""
    evidence = Evidence(**({"coverage": {"stable": 1.0, "canary": 1.0}} | changes))
    watch = Statistics(canary=ArmCounts(trajectories=trajectories), evidence=evidence, subjects=trajectories)
    return msgspec.structs.replace(rollout, statistics=watch)


def aged(rollout: Rollout, seconds: float) -> Rollout:
    """The rollout after it was watched for so long."""
    passed = {"stage_age_s": rollout.stage_age_s + seconds, "age_s": rollout.age_s + seconds}
    return msgspec.structs.replace(rollout, **passed)


LARGE = {"failure": 50.0, "reward": 40.0}
PROVEN = {"promotion": LARGE, "promotion_by_trajectory": LARGE, "varies": True}
"""All the evidence for promotion."""


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_move_that_is_not_in_the_table_is_refused(state: State, verdict: Verdict) -> None:
    for target in State:
        if target in MOVES.get((state, verdict), frozenset()):
            assert checked_move(state, verdict, target) is target
        else:
            with pytest.raises(IllegalMove, match=f"cannot {verdict} a rollout that is {state}"):
                checked_move(state, verdict, target)


def test_nothing_leads_out_of_a_terminal_state_and_all_others_have_a_way() -> None:
    leaving = {state for (state, _), targets in MOVES.items() if targets != {state}}
    assert leaving.isdisjoint(TERMINAL)
    assert leaving == set(State) - TERMINAL
    assert set(CANDIDATE_STAGE) == set(State)


def test_default_schedule_is_10_25_50_100_at_0_60_120_240_minutes() -> None:
    rules = Settings().rules()
    clock, reached = FakeClock(), {0: 0.1}
    rollout = decisions.apply_decision(
        gating(), Decision(Verdict.START, "go", ITSELF), rules, ANNOUNCER, CANDIDATE, clock()
    )
    for minute in range(1, 300):
        clock.advance(60)
        rollout = aged(with_canary(rollout, 20 * minute, **PROVEN), 60)
        decision = decide(aged(rollout, rules.lead_s), rules)
        if decision is not None and rollout.state is State.RUNNING:
            rollout = decisions.apply_decision(rollout, decision, rules, ANNOUNCER, CANDIDATE, clock())
            reached[minute] = rollout.weight
    assert reached == {0: 0.1, 60: 0.25, 120: 0.5, 240: 0.95}


def test_a_stage_lasts_for_its_time_and_its_trajectories() -> None:
    early, late = aged(running(), 59), aged(running(), 61)
    assert waiting_for(with_canary(early, 5), RULES) == ["59 of 60 s in this stage"]
    assert waiting_for(with_canary(late, 4), RULES) == ["4 of 5 canary trajectories in this stage"]
    decision = decide(with_canary(late, 5), RULES)
    assert decision is not None
    assert decision.verdict is Verdict.ADVANCE


def test_trajectories_of_an_earlier_stage_do_not_count_for_the_next() -> None:
    rollout = take(with_canary(running(), 50), Verdict.ADVANCE, 61)
    assert (rollout.stage, rollout.weight, rollout.stage_base) == (1, 0.25, 50)
    assert waiting_for(aged(rollout, 500), RULES) == ["0 of 5 canary trajectories in this stage"]


def test_no_stage_is_left_while_evidence_leans_towards_rollback() -> None:
    rollout = with_canary(running(), 50, caution=7.39)
    assert waiting_for(aged(rollout, 61), RULES) == ["rollback e-value 7.39 below 4"]


@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_too_few_known_outcomes_block_the_next_stage_but_no_rollback(arm: str) -> None:
    coverage = {"stable": 0.9, "canary": 0.9, arm: 0.79}
    lacks = [f"79% of the 80% of outcomes that must be known on the {arm} arm"]
    for rollout in (running(), last_stage()):
        thin = aged(with_canary(rollout, 300, **PROVEN, coverage=coverage), 500)
        assert waiting_for(thin, RULES) == lacks
        assert decide(thin, RULES) is None
    worse = with_canary(running(), 300, coverage=coverage, rollback={"combined": 41.0})
    assert decide(worse, RULES).verdict is Verdict.ROLL_BACK


def test_an_arm_without_known_outcomes_has_no_coverage() -> None:
    unknown = with_canary(running(), 300, coverage={})
    assert waiting_for(aged(unknown, 500), RULES) == ["outcomes on both arms"]


def last_stage() -> Rollout:
    second = take(with_canary(running(), 50), Verdict.ADVANCE, 61)
    third = take(with_canary(second, 100), Verdict.ADVANCE, 122)
    return with_canary(third, 200, **PROVEN)


def test_promotion_is_decided_in_the_last_stage_only_and_then_soaks() -> None:
    first = aged(with_canary(running(), 200, **PROVEN), 60)
    assert decide(first, RULES).verdict is Verdict.ADVANCE
    rollout = aged(last_stage(), 60)
    assert decide(rollout, RULES).verdict is Verdict.PROMOTE
    soak = take(rollout, Verdict.PROMOTE, 190)
    assert (soak.state, soak.weight) == (State.SOAKING, 0.95)
    assert decide(aged(soak, 29), RULES) is None
    done = take(soak, decide(aged(soak, 30), RULES).verdict, 220)
    assert (done.state, done.weight) == (State.PROMOTED, 0.0)


def test_every_promotion_metric_must_be_proven() -> None:
    failure = {"failure": 50.0}
    rollout = with_canary(last_stage(), 200, promotion=failure, promotion_by_trajectory=failure, varies=True)
    assert waiting_for(aged(rollout, 500), RULES) == ["promotion e-value of reward 1 of 20"]


@pytest.mark.parametrize(
    ("short", "unit"), [("promotion", " by subject"), ("promotion_by_trajectory", "")], ids=["subjects", "trajectories"]
)
def test_promotion_needs_evidence_by_subject_and_by_trajectory(short: str, unit: str) -> None:
    rollout = with_canary(last_stage(), 200, **(PROVEN | {short: {"failure": 19.0, "reward": 40.0}}))
    assert waiting_for(aged(rollout, 500), RULES) == [f"promotion e-value of failure{unit} 19 of 20"]


@pytest.mark.parametrize(("unapplied", "waits"), [(10, []), (11, ["89% of the 90% of canary trajectories"])])
def test_a_bundle_that_few_met_is_not_promoted(unapplied: int, waits: list[str]) -> None:
    proven = with_canary(last_stage(), 200, **PROVEN).statistics
    counts = ArmCounts(trajectories=200, first_calls=100, unapplied=unapplied)
    rollout = msgspec.structs.replace(last_stage(), statistics=msgspec.structs.replace(proven, canary=counts))
    lacking = waiting_for(aged(rollout, 500), RULES)
    assert [words.partition(" that")[0] for words in lacking] == waits


def test_so_few_subjects_promote_nothing() -> None:
    few = msgspec.structs.replace(with_canary(last_stage(), 200, **PROVEN).statistics, subjects=9)
    rollout = aged(msgspec.structs.replace(last_stage(), statistics=few), 500)
    assert waiting_for(rollout, RULES) == ["9 of 10 subjects: fewer say nothing of others"]
    assert decide(rollout, RULES) is None


SUSPICIONS = [
    ({"suspension": {"combined": 41.0}}, "worse than the margin, for the traffic so far: 41 reached 40"),
    ({"suspension": {"complaints": 201.0}}, "more complaints than the margin, for the traffic so far: 201 reached 200"),
    ({"suspension": {"first_call": 101.0}}, "first calls fail, for the traffic so far: 101 reached 100"),
    ({"suspension": {"safety": 201.0}}, "safety violations, for the traffic so far: 201 reached 200"),
    ({"run_of_trajectories": 0.004}, "canary trajectories fail one after the other, for the traffic so far"),
]


@pytest.mark.parametrize(("shown", "reason"), SUSPICIONS)
def test_what_trajectories_show_suspends_and_asks_with_the_subjects_seen(shown: dict[str, object], reason: str) -> None:
    decision = decide(with_canary(running(), 1, **shown), RULES)
    assert decision.verdict is Verdict.SUSPEND
    assert decision.reason.startswith(reason)
    assert "1 subjects seen in 0 trajectories: a person has to look" in decision.reason


def suspended(**rules: object) -> Rollout:
    rollout = with_canary(running(), 1, suspension={"combined": 41.0})
    moved = decisions.apply_decision(
        rollout, decide(rollout, RULES), quick_rules(**rules), ANNOUNCER, CANDIDATE, FakeClock()()
    )
    assert moved.state is State.SUSPENDED
    return moved


def test_a_suspended_canary_has_no_traffic_and_no_route() -> None:
    rollout = suspended()
    assert rollout.weight == 0
    assert expected_route(Route(role="support"), rollout).canary is None
    assert '"severity":"critical"' in rollout.outbox[-1].body


@pytest.mark.parametrize(("state", "verdict"), sorted(MOVES))
def test_announcements_of_every_move_keep_their_contract(state: State, verdict: Verdict) -> None:
    moved = take(msgspec.structs.replace(running(), state=state, parked=state in TERMINAL), verdict)
    checked = [
        load_contracts().check_strict(msgspec.json.decode(event.body, type=MESSAGES[event.topic]))
        for event in moved.outbox
    ]
    assert all(checked)
    assert checked


def test_a_suspended_canary_is_rolled_back_once_subjects_show_it() -> None:
    shown = with_canary(suspended(), 2, suspension={"combined": 41.0}, rollback={"combined": 41.0})
    assert decide(shown, RULES).verdict is Verdict.ROLL_BACK


def test_suspended_canary_is_withdrawn_at_its_deadline_never_promoted() -> None:
    proven = with_canary(suspended(), 200, suspension={"combined": 41.0}, **PROVEN)
    assert decide(aged(proven, RULES.deadline_s - 1), RULES) is None
    ended = take(aged(proven, RULES.deadline_s), Verdict.WITHDRAW)
    assert decide(aged(proven, RULES.deadline_s), RULES).verdict is Verdict.WITHDRAW
    assert (ended.state, ended.weight) == (State.WITHDRAWN, 0.0)


def test_canary_that_was_let_go_on_is_suspended_by_as_much_again() -> None:
    resumed = take(suspended(), Verdict.RESUME)
    assert (resumed.state, resumed.weight) == (State.RUNNING, 0.1)
    again = 40.0 * 41.0
    assert decide(with_canary(resumed, 2, suspension={"combined": 39 * 41.0}), RULES) is None
    assert decide(with_canary(resumed, 2, suspension={"combined": again}), RULES).verdict is Verdict.SUSPEND


def test_a_canary_suspended_in_its_soak_goes_back_to_it() -> None:
    rollout = with_canary(soaking(), 50, suspension={"combined": 41.0})
    assert decide(rollout, RULES).verdict is Verdict.SUSPEND
    resumed = take(take(rollout, Verdict.SUSPEND), Verdict.RESUME)
    assert (resumed.state, resumed.weight) == (State.SOAKING, 0.95)


def test_a_role_may_keep_the_first_weight_until_a_second_threshold() -> None:
    rollout = suspended(kept_small=True)
    assert rollout.weight == 0.1
    assert decide(with_canary(rollout, 2, suspension={"combined": 41.0, "far_worse": 199.0}), RULES) is None
    far = with_canary(rollout, 2, suspension={"combined": 41.0, "far_worse": 201.0})
    decision = decide(far, RULES)
    assert decision.verdict is Verdict.SUSPEND
    assert take(far, Verdict.SUSPEND).weight == 0


def test_a_metric_that_looks_worse_than_its_margin_vetoes_promotion() -> None:
    rollout = with_canary(last_stage(), 200, **PROVEN, differences={"latency": 0.2})
    assert waiting_for(aged(rollout, 500), RULES) == ["latency is 0.200 worse, the margin is 0.1"]
    without = quick_rules(metrics=("failure", "reward"))
    assert waiting_for(aged(rollout, 500), without) == []


def test_a_past_alarm_rolls_back_even_if_the_evidence_has_receded() -> None:
    alarmed = with_canary(running(), 1, rollback={"combined": 41.0}, caution=1.0)
    for rollout in (alarmed, take(alarmed, Verdict.PAUSE), take(alarmed, Verdict.HOLD)):
        assert decide(rollout, RULES).verdict is Verdict.ROLL_BACK


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({"rollback": {"combined": 41.0}}, "worse than the margin: e-value 41 reached 40"),
        ({"rollback": {"complaints": 201.0}}, "more complaints than the margin: e-value 201 reached 200"),
        ({"rollback": {"first_call": 101.0}}, "first calls fail: e-value 101 reached 100"),
        ({"rollback": {"safety": 201.0}}, "safety violations: e-value 201 reached 200"),
        ({"run": 0.004}, "canary trajectories fail one after the other: chance at most 0.004 of 0.005"),
    ],
)
def test_each_test_rolls_back_when_its_share_of_the_budget_is_used_up(shown: dict[str, object], reason: str) -> None:
    decision = decide(with_canary(running(), 1, **shown), RULES)
    assert (decision.verdict, decision.reason) == (Verdict.ROLL_BACK, reason)
    short = {"rollback": {"combined": 39.0, "complaints": 199.0, "first_call": 99.0, "safety": 199.0}, "run": 0.0051}
    assert decide(with_canary(running(), 1, **short), RULES) is None


def test_harm_that_is_the_same_for_every_trajectory_proves_nothing() -> None:
    same = aged(with_canary(last_stage(), 200, **(PROVEN | {"constant": ("failure",)})), 500)
    assert waiting_for(same, RULES) == ["failure: every trajectory did the same harm, which shows nothing"]
    flat = aged(with_canary(last_stage(), 200, **(PROVEN | {"varies": False})), 500)
    assert waiting_for(flat, RULES) == ["any trajectory that differs from the others"]


def test_a_role_without_outcomes_asks_an_operator_for_the_promotion() -> None:
    rules = quick_rules(roles_without_outcomes=frozenset({"support"})).for_role("support")
    assert (rules.metrics, rules.promotion_metrics) == (("reward", "latency"), ("reward", "latency"))
    large = {"reward": 30.0, "latency": 25.0}
    shown = {"promotion": large, "promotion_by_trajectory": large, "varies": True, "coverage": {}}
    decision = decide(aged(with_canary(last_stage(), 200, **shown), 500), rules)
    assert decision.verdict is Verdict.HOLD
    assert decision.reason.endswith("the role has no outcomes, a person decides")


def test_a_concern_holds_once_and_never_rolls_back() -> None:
    uneven = with_canary(running(), 1, suspension={"sample_ratio": 1e9})
    asked = decide(uneven, RULES)
    assert (asked.verdict, asked.reason) == (
        Verdict.HOLD,
        "a person has to look: the arms do not get the shares that were drawn: e-value 1e+09",
    )
    held = take(uneven, Verdict.HOLD)
    assert held.noticed == ("sample_ratio",)
    assert decide(take(held, Verdict.RESUME), RULES) is None


@pytest.mark.parametrize(
    ("started", "unannounced", "holds"), [(0, 19, False), (0, 20, True), (30, 29, False), (30, 30, True)]
)
def test_a_canary_whose_traffic_is_in_no_statistic_asks_an_operator(
    started: int, unannounced: int, holds: bool
) -> None:
    """Calls reach the canary and its starts do not reach the deployer: it can judge nothing, and says so."""
    watch = Statistics(canary=ArmCounts(started=started, unannounced=unannounced))
    decision = decide(msgspec.structs.replace(running(), statistics=watch), RULES)
    assert (decision is not None) == holds
    if holds:
        assert decision.verdict is Verdict.HOLD
        assert f"{unannounced} canary trajectories have calls and no start that counts" in decision.reason


def test_a_safety_violation_asks_an_operator_and_complaints_alone_do_not() -> None:
    arms = {"stable": ArmCounts(rated=20), "canary": ArmCounts(rated=20, complaints=20, violations=1)}
    watch = msgspec.structs.replace(Statistics(), **arms)
    decision = decide(msgspec.structs.replace(running(), statistics=watch), RULES)
    assert decision.verdict is Verdict.HOLD
    assert decision.reason == "a person has to look: 1 canary trajectories violated safety"
    complained = msgspec.structs.replace(watch, canary=ArmCounts(rated=20, complaints=20))
    assert decide(msgspec.structs.replace(running(), statistics=complained), RULES) is None


def test_one_safety_event_rolls_back_where_that_is_the_roles_rule() -> None:
    arms = {"stable": ArmCounts(started=900, violations=2), "canary": ArmCounts(started=120, violations=1)}
    watched = msgspec.structs.replace(running(), statistics=msgspec.structs.replace(Statistics(), **arms))
    rules = quick_rules(roles_rolled_back_on_safety=frozenset({"support"}))
    decision = decide(watched, rules.for_role("support"))
    assert (decision.verdict, decision.reason) == (
        Verdict.ROLL_BACK,
        "1 of 120 canary trajectories violated safety, 2 of 900 of stable's, at whose rate 23% of canaries as long do",
    )
    assert decide(watched, rules.for_role("planner")).verdict is Verdict.HOLD


def test_undecided_at_the_deadline_is_held() -> None:
    decision = decide(aged(running(), 3600), RULES)
    assert decision.verdict is Verdict.HOLD


def test_a_new_weight_holds_a_little_later_for_all_gateways_alike() -> None:
    rules = quick_rules(lead_s=2.0)
    rollout = decisions.apply_decision(
        gating(), Decision(Verdict.START, "go", ITSELF), rules, ANNOUNCER, CANDIDATE, START
    )
    assert [step.at - START for step in rollout.schedule] == [timedelta(seconds=2)]


def test_a_deployment_names_the_engine_of_its_role() -> None:
    announcer = Announcer("http://127.0.0.1:8080", lambda role: {CANDIDATE[0].role: "vllm"}[role])
    started = decisions.apply_decision(
        gating(), Decision(Verdict.START, "go", ITSELF), RULES, announcer, CANDIDATE, START
    )
    bodies = [msgspec.json.decode(event.body) for event in started.outbox]
    configs = [body["deployment_config"] for body in bodies if "deployment_config" in body]
    assert [config["serving_platform"] for config in configs] == ["vllm"]


def test_each_rollout_has_its_own_salt() -> None:
    first = running()
    again = decisions.new_rollout(policy(2), served(1), first.last_hash, Decision(Verdict.START, "again", "ann"), START)
    assert first.salt != again.salt
    assert again.last_hash == first.last_hash


def soaking() -> Rollout:
    """A promotion that the evidence has decided, when its soak's time is over."""
    rollout = msgspec.structs.replace(running(), stage=2, stage_age_s=0.0)
    return aged(take(with_canary(rollout, 50, **PROVEN), Verdict.PROMOTE), 30)


def test_evidence_lost_in_the_soak_ends_no_promotion() -> None:
    small = {"failure": 5.0, "reward": 40.0}
    lost = with_canary(soaking(), 50, varies=True, promotion=small, promotion_by_trajectory=small)
    assert decide(lost, RULES) is None
    assert waiting_for(lost, RULES) == ["promotion e-value of failure 5 of 20"]
    late = aged(lost, RULES.deadline_s)
    decision = decide(late, RULES)
    assert decision is not None
    assert (decision.verdict, decision.reason) == (
        Verdict.HOLD,
        "undecided at the deadline: promotion e-value of failure 5 of 20",
    )
    held = take(late, Verdict.HOLD)
    assert (held.state, held.weight) == (State.HELD, 0.95)
    resumed = take(held, Verdict.RESUME)
    assert (resumed.state, resumed.stage_age_s >= RULES.soak_s) == (State.SOAKING, True)
    assert decide(with_canary(resumed, 50, **PROVEN), RULES).verdict is Verdict.PROMOTE


def test_a_concern_in_the_soak_holds_it_once_and_asks_an_operator() -> None:
    soak = soaking()
    counts = ArmCounts(trajectories=60, violations=1)
    worrying = msgspec.structs.replace(soak, statistics=msgspec.structs.replace(soak.statistics, canary=counts))
    decision = decide(worrying, RULES)
    assert decision is not None
    assert (decision.verdict, "violated safety" in decision.reason) == (Verdict.HOLD, True)
    held = decisions.apply_decision(worrying, decision, RULES, ANNOUNCER, CANDIDATE, START)
    assert (held.state, held.noticed) == (State.HELD, ("safety",))
    assert decide(take(held, Verdict.RESUME), RULES).verdict is Verdict.PROMOTE


@pytest.mark.parametrize(
    ("canary", "stable", "holds"),
    [
        ((9, 10), (0, 500), False),
        ((10, 199), (0, 500), True),
        ((10, 200), (0, 500), False),
        ((40, 200), (1, 4), False),
        ((40, 200), (50, 500), False),
        ((41, 200), (50, 500), True),
        ((10, 10), (0, 0), True),
    ],
)
@pytest.mark.parametrize("strategy", ["canary", "blue_green"])
def test_canary_whose_calls_the_engine_fails_is_held_in_its_soak(
    strategy: str, canary: tuple[int, int], stable: tuple[int, int], holds: bool
) -> None:
    soak = msgspec.structs.replace(soaking(), strategy=strategy)
    arms = [ArmCounts(trajectories=60, faulted=faulted, started=started) for faulted, started in (canary, stable)]
    statistics = msgspec.structs.replace(soak.statistics, canary=arms[0], stable=arms[1])
    faulty = msgspec.structs.replace(soak, statistics=statistics)
    decision = decide(faulty, RULES)
    assert decision.verdict is (Verdict.HOLD if holds else Verdict.PROMOTE)
    if holds:
        resumed = take(decisions.apply_decision(faulty, decision, RULES, ANNOUNCER, CANDIDATE, START), Verdict.RESUME)
        assert decide(resumed, RULES) is None
        assert waiting_for(resumed, RULES)[0].startswith("the engine failed calls of")


@pytest.mark.parametrize(("canary", "stable", "holds"), [(1, 0, True), (1, 1, False), (0, 1, False)])
def test_a_canary_whose_server_lacks_its_model_is_held_once(canary: int, stable: int, holds: bool) -> None:
    soak = soaking()
    arms = [ArmCounts(trajectories=60, started=60, no_model=lacking) for lacking in (canary, stable)]
    statistics = msgspec.structs.replace(soak.statistics, canary=arms[0], stable=arms[1])
    lacking = msgspec.structs.replace(soak, statistics=statistics)
    decision = decide(lacking, RULES)
    assert (decision.verdict is Verdict.HOLD) is holds
    if holds:
        assert "does not have the bundle's model" in decision.reason
        held = decisions.apply_decision(lacking, decision, RULES, ANNOUNCER, CANDIDATE, START)
        assert decide(take(held, Verdict.RESUME), RULES).verdict is Verdict.PROMOTE


def test_blue_green_has_no_evidence_to_lose() -> None:
    rollout = msgspec.structs.replace(gating(), strategy="blue_green")
    soak = take(rollout, Verdict.START)
    assert decide(aged(soak, 29), RULES) is None
    assert decide(aged(soak, 30), RULES).verdict is Verdict.PROMOTE


def test_an_operators_promotion_makes_the_candidate_stable_without_a_soak() -> None:
    assert take(running(), Verdict.PROMOTE, actor="ann").state is State.PROMOTED


def test_blue_green_goes_straight_to_the_soak() -> None:
    rollout = msgspec.structs.replace(gating(), strategy="blue_green")
    started = take(rollout, Verdict.START)
    assert (started.state, started.weight) == (State.SOAKING, 0.95)


def test_without_a_hold_back_no_strategy_soaks() -> None:
    assert state_after_gates("blue_green", soaks=True) is State.SOAKING
    assert state_after_gates("blue_green", soaks=False) is State.PROMOTED
    assert state_after_gates("canary", soaks=False) is State.RUNNING


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
def test_the_strategy_follows_the_improvement_only_if_asked_to(
    setting: str, improvement: float | None, strategy: str | None
) -> None:
    assert chosen(setting, improvement) == strategy


def test_routes_follow_from_the_state_and_settling_twice_changes_nothing() -> None:
    route = Route(role="support", stable=served(1), next_version=3)
    live = expected_route(route, running())
    assert live.canary is not None
    assert (live.canary.policy, live.stable) == (served(2), served(1))
    assert expected_route(live, running()) == live
    promoted = expected_route(live, take(running(), Verdict.PROMOTE, actor="ann"))
    assert (promoted.stable, promoted.previous, promoted.canary) == (served(2), served(1), None)
    assert expected_route(promoted, take(running(), Verdict.PROMOTE, actor="ann")) == promoted
    back = expected_route(live, take(running(), Verdict.ROLL_BACK))
    assert (back.stable, back.previous, back.canary) == (served(1), None, None)


def test_only_a_lease_with_traffic_grows() -> None:
    route = Route(role="support", stable=served(1))
    live = renewed_route(route, running())
    again = renewed_route(live, running())
    assert live.canary is not None
    assert again.canary is not None
    assert again.canary.lease == live.canary.lease + 1
    assert renewed_route(again, take(running(), Verdict.ROLL_BACK)).canary is None


def test_the_record_survives_its_json() -> None:
    rollout = last_stage()
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout


def test_operators_see_the_conditions_that_a_rollout_waits_for() -> None:
    shown = summary(running(), RULES)
    assert shown.waiting_for == [
        "0 of 60 s in this stage",
        "0 of 5 canary trajectories in this stage",
        "outcomes on both arms",
    ]
    assert shown.arms.canary.error_rate == "no calls"
    assert shown.arms.canary.failure_rate == "no trajectories"
