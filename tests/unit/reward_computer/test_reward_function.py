"""Components become a reward: weights, total, dense shares, confidence, ids, revisions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import Outcome, Reward, decode, encode
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.trajectory import Quality
from ratchet.core.errors import ConfigError
from ratchet.core.service.contracts import load_contracts
from ratchet.reward_computer.components import COMPONENTS, Assessment, Evidence
from ratchet.reward_computer.domain.normalization import Stats
from ratchet.reward_computer.domain.reward import (
    Circumstances,
    RewardSpec,
    has_new_opinions,
    newest,
    recorded_history,
    reward_id,
    reward_of,
    turn_rewards,
)
from ratchet.reward_computer.settings import Settings, spec_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, feedback
from tests.unit.reward_computer.test_reward_components import turns

CONTRACTS = load_contracts()
NOW = Circumstances(AT)


def reward(spec: RewardSpec | None = None, opinions: Any = (), when: Circumstances = NOW, **changes: Any) -> Reward:
    history = Stats(50, 10.0, 2.0, 5, 20)
    made = reward_of(spec or RewardSpec(function=FUNCTION), Evidence(trajectory(**changes), opinions, history), when)
    CONTRACTS.check_strict(made)
    return made


def test_the_default_weights_are_spread_over_what_applies() -> None:
    made = reward(turns=turns(10), outcome=Outcome(status="success", verified_by="environment"))
    parts = made.reward_components
    assert {name: part.applicable for name, part in parts.items()} == {
        "task_completion": True,
        "efficiency": True,
        "code_quality": False,
        "user_feedback": False,
    }
    assert parts["task_completion"].weight == pytest.approx(0.4 / 0.6)
    assert parts["code_quality"].weight == 0.0
    assert made.total_reward == pytest.approx((0.4 * 1.0 + 0.2 * 0.5) / 0.6)


def test_with_all_components_the_weights_are_the_documented_ones() -> None:
    made = reward(opinions=[feedback(value=False)], turns=turns(6), quality=Quality(lint_score=5))
    weights = {name: part.weight for name, part in made.reward_components.items()}
    assert weights == pytest.approx(
        {"task_completion": 0.4, "efficiency": 0.2, "code_quality": 0.15, "user_feedback": 0.25}
    )
    assert made.total_reward == pytest.approx(0.4 + 0.2 + 0.15 * 0.5)


def test_weights_are_by_role_and_fall_back_to_default() -> None:
    spec = RewardSpec(
        function=FUNCTION,
        weights={"coder": {"code_quality": 1.0}, "default": {"user_feedback": 0.5, "task_completion": 0.5}},
    )
    assert set(reward(spec, role="coder").reward_components) == {"code_quality"}
    assert set(reward(spec, role="support").reward_components) == {"user_feedback", "task_completion"}


def test_where_nothing_applies_nothing_is_claimed_to_be_known() -> None:
    made = reward(outcome=None)
    assert (made.total_reward, made.metadata.confidence) == (0.0, 0.0)
    assert not any(part.applicable for part in made.reward_components.values())


def test_confidence_follows_the_source() -> None:
    claimed = reward(outcome=Outcome(status="success"))
    checked = reward(outcome=Outcome(status="success", verified_by="environment"))
    assert claimed.metadata.confidence is not None
    assert checked.metadata.confidence is not None
    assert claimed.metadata.confidence < checked.metadata.confidence <= 1.0


@pytest.mark.parametrize(
    ("opinions", "outcome", "method"),
    [
        ([], Outcome(status="success"), "automated"),
        ([feedback()], Outcome(status="success"), "hybrid"),
        ([feedback()], None, "human"),
        ([], None, "automated"),
    ],
)
def test_the_method_of_evaluation_is_named(opinions: Any, outcome: Outcome | None, method: str) -> None:
    assert reward(opinions=opinions, outcome=outcome).metadata.evaluation_method == method


def test_a_custom_component_is_one_function_and_one_weight() -> None:
    def courtesy(evidence: Evidence) -> Assessment | None:
        polite = "please" in (evidence.trajectory.turns[-1].action.raw_response or "")
        return Assessment(1.0 if polite else 0.25, 0.5, "looked for `please`")

    spec = RewardSpec(
        function=RewardFunction(name="polite", version="2"),
        weights={"default": {"courtesy": 1.0}},
        components={**COMPONENTS, "courtesy": courtesy},
    )
    made = reward(spec)
    assert made.total_reward == 0.25
    assert made.reward_components["courtesy"].reasoning == "looked for `please`"
    assert made.metadata.evaluator == "reward_computer polite@2"


outcomes = st.none() | st.builds(
    Outcome,
    status=st.sampled_from(["success", "partial", "failure", "unheard-of"]),
    completion_percentage=st.none() | st.floats(0, 100),
    verified_by=st.none() | st.just("environment"),
)
qualities = st.none() | st.builds(
    Quality,
    lint_score=st.none() | st.floats(0, 10),
    tests_passed=st.none() | st.integers(0, 9),
    tests_total=st.none() | st.integers(0, 9),
    critical_issues=st.none() | st.integers(0, 9),
)
opinions = st.lists(
    st.builds(
        lambda number, kind, value: feedback(number, kind=kind, value=value),
        st.integers(0, 3),
        st.sampled_from(["thumbs", "rating", "correction", "abandoned", "comment"]),
        st.booleans() | st.floats(0, 5),
    ),
    max_size=4,
)
weightings = st.dictionaries(st.sampled_from(sorted(COMPONENTS)), st.floats(0, 1), max_size=len(COMPONENTS))
dense = st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=6)


@given(outcomes, qualities, opinions, weightings, dense)
def test_the_total_stays_in_range_and_the_turns_sum_to_it(
    outcome: Any, quality: Any, opinions: Any, weights: Any, given_rewards: Any
) -> None:
    spec = RewardSpec(function=FUNCTION, weights={"default": weights})
    entries = [rewarded_turn(turn, value) for turn, value in zip(turns(len(given_rewards)), given_rewards, strict=True)]
    made = reward(spec, opinions, outcome=outcome, quality=quality, turns=entries)
    parts = made.reward_components.values()
    assert 0.0 <= made.total_reward <= 1.0
    assert made.metadata.confidence is not None
    assert 0.0 <= made.metadata.confidence <= 1.0
    mass = math.fsum(part.weight for part in parts)
    assert mass == 0.0 or mass == pytest.approx(1.0)
    assert made.total_reward == pytest.approx(math.fsum(part.weight * part.score for part in parts))
    assert made.turn_rewards is not None
    assert math.fsum(turn.reward for turn in made.turn_rewards) == pytest.approx(made.total_reward, abs=1e-9)
    assert decode(encode(made), Reward) == made


def rewarded_turn(turn: Any, value: float | None) -> Any:
    return type(turn)(**{name: getattr(turn, name) for name in turn.__struct_fields__} | {"reward": value})


def test_turns_that_worked_share_the_reward_equally() -> None:
    worked, failed = turns(3), turns(4, worked=False)[3:]
    assert [turn.reward for turn in turn_rewards([*worked, *failed], 0.6)] == pytest.approx([0.2, 0.2, 0.2, 0.0])
    assert [turn.reward for turn in turn_rewards(turns(2, worked=False), 0.6)] == pytest.approx([0.3, 0.3])


def test_rewards_of_the_environment_stand_and_the_last_turn_takes_the_rest() -> None:
    entries = [rewarded_turn(turn, value) for turn, value in zip(turns(3), (0.5, None, -0.25), strict=True)]
    assert [turn.reward for turn in turn_rewards(entries, 1.0)] == [0.5, 0.0, 0.5]


def test_sparse_rewards_have_no_turns() -> None:
    made = reward(RewardSpec(function=FUNCTION, dense=False))
    assert (made.reward_type, made.turn_rewards) == ("sparse", None)


def test_the_id_is_that_of_trajectory_role_function_and_revision() -> None:
    made = reward()
    assert made.reward_id == made.event_id == reward_id(trajectory(), FUNCTION, 0)
    others = {
        reward_id(trajectory("two"), FUNCTION, 0),
        reward_id(trajectory(role="planner"), FUNCTION, 0),
        reward_id(trajectory(), FUNCTION, 1),
        reward_id(trajectory(), RewardFunction(name="standard", version="2"), 0),
    }
    assert len(others | {made.reward_id}) == 5


def test_safety_is_computed_where_it_is_labelled_and_weighs_nothing() -> None:
    made = reward(labels={"scores": {"safety": 0.0}})
    part = made.reward_components["safety"]
    assert (part.score, part.weight, part.applicable) == (0.0, 0.0, True)
    assert made.total_reward == reward().total_reward
    assert "safety" not in reward().reward_components
    alone = reward(outcome=None, labels={"scores": {"safety": 1.0}})
    assert (alone.total_reward, alone.metadata.confidence) == (0.0, 0.0)


def test_a_reward_knows_which_opinions_it_holds() -> None:
    spec, first, second = RewardSpec(function=FUNCTION), feedback(1), feedback(2)
    made = reward(spec, opinions=[first])
    assert not has_new_opinions(spec, [first, feedback(3, kind="comment", value="hm")], made)
    assert has_new_opinions(spec, [first, second], made)
    assert has_new_opinions(spec, [first], reward(spec))


def test_a_function_without_the_opinion_component_is_never_revised() -> None:
    spec = RewardSpec(function=FUNCTION, weights={"default": {"task_completion": 1.0}})
    assert not has_new_opinions(spec, [feedback()], reward(spec))


def test_the_baseline_of_a_reward_can_be_read_back() -> None:
    read = recorded_history(decode(encode(reward()), Reward))
    assert read is not None
    assert (read.count, read.mean, read.std) == (50, 10.0, 2.0)
    assert recorded_history(reward(outcome=None)) is None


def test_a_revision_follows_the_last_reward_of_its_own_function() -> None:
    other = RewardFunction(name="other", version="1")
    mine = [reward(when=Circumstances(AT, revision)) for revision in (0, 2, 1)]
    foreign = reward(RewardSpec(function=other), when=Circumstances(AT, 7))
    assert newest([foreign, *mine], FUNCTION) == mine[1]
    assert newest([foreign], FUNCTION) == foreign
    assert newest([], FUNCTION) is None


def test_settings_describe_the_function() -> None:
    spec = spec_of(
        Settings(weights={"coder": {"code_quality": 0.7, "safety": 0.3}}, normalization="min-max", window=50)
    )
    assert spec.weights_of("coder") == {"code_quality": 0.7, "safety": 0.3}
    assert spec.weights_of("other")["task_completion"] == 0.4
    assert (spec.method_of("coder"), spec.window, spec.function) == ("min-max", 50, FUNCTION)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": {"speed": 1.0}}, "role a has unknown components speed; there are: task_completion"),
        ({"a": {"safety": 1.5}}, "role a must lie in 0..1"),
        ({"a": {"safety": 0.0}}, "one of them above 0"),
        ({"a": {}}, "one of them above 0"),
    ],
)
def test_wrong_weights_are_refused_at_the_start(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(Settings(weights=weights))
