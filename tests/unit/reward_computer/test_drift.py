"""What is watched in rewards: each metric once for a trajectory, and an alert where a level changes."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.contract.reward import Effort
from ratchet.reward_computer.domain.drift import SETTLED, Watch, readings, stated, watch_reward
from ratchet.reward_computer.domain.shifts import Shift
from ratchet.reward_computer.drift_alerts import standing
from tests.support.drift_worlds import Planted, alerts, reward, rewards
from tests.support.rewards import received


def test_reading_of_a_component_is_its_score_less_the_rest_of_the_reward() -> None:
    read = readings(reward(1, {"task_completion": 1.0, "efficiency": 0.4, "user_feedback": 0.1, "judge": 0.5}))
    assert read["task_completion"].value == pytest.approx(1.0 - 0.25)
    assert read["judge"].value == pytest.approx(0.5 - 0.625)
    assert read["reward"].value == pytest.approx(0.625)


def test_reading_of_the_only_component_is_the_reward_alone() -> None:
    assert readings(reward(1, {"task_completion": 1.0})).keys() == {"reward"}


def test_reading_of_no_component_is_nothing() -> None:
    assert readings(reward(1, {})) == {}
    assert readings(reward(1, {"judge": 0.5})) == {}


def test_readings_have_length_and_calls_once() -> None:
    effort = Effort(model_calls=3, characters=400)
    assert readings(reward(1, {}, effort)).keys() == {"length", "calls"}
    later = reward(1, {"task_completion": 1.0}, effort, revision=1, first_scored=["task_completion"])
    assert readings(later).keys() == {"reward"}


def test_readings_of_a_revision_are_what_it_tells_first() -> None:
    scores = {"task_completion": 1.0, "efficiency": 0.4, "judge": 0.5}
    assert readings(reward(1, scores, revision=1, first_scored=["judge"])).keys() == {"judge"}
    assert readings(reward(1, scores, revision=2, first_scored=[])) == {}


def test_readings_of_a_score_wait_for_the_reward_to_compare_it_with() -> None:
    late = reward(1, {"task_completion": 1.0, "judge": 0.5}, revision=1, first_scored=["task_completion"])
    assert readings(late).keys() == {"reward", "judge"}


def test_scores_outside_0_to_1_are_of_no_function_of_ours_and_not_watched() -> None:
    assert readings(reward(1, {"task_completion": 1e300, "efficiency": 0.4})) == {}


@pytest.mark.parametrize(
    ("planted", "severity"),
    [({"judge": -0.1}, "warning"), ({"judge": 0.1}, "info"), ({"length": 0.4}, "warning"), ({"calls": 1.0}, "warning")],
)
def test_alert_names_the_metric_that_changed(planted: dict[str, float], severity: str) -> None:
    (number, metric, watch), *more = list(alerts(rewards(1, 1100, Planted(600, planted))))
    assert ([metric], more) == ([*planted], [])
    assert 600 <= number < 1100
    assert watch.alert is not None
    assert (watch.alert.severity, watch.alert.role, watch.alert.cleared) == (severity, "support", False)
    assert f"over the last {(watch.alert.labels or {})['trajectories']} trajectories" in watch.alert.summary


def test_alert_names_the_newest_trajectories_since_the_change() -> None:
    played = list(rewards(1, 1100, Planted(600, {"judge": -0.1})))
    (number, _, watch), *_ = list(alerts(played))
    assert watch.alert is not None
    assert (watch.alert.labels or {})["evidence"] == [one.trajectory_id for one in played[: number + 1][-20:]]


@pytest.mark.parametrize(
    ("after", "summary"),
    [
        (0.5, "the reward fell from 0.6 to 0.5 over the last 150 trajectories"),
        (0.63, "the reward is lower than before in most, though its mean went from 0.6 to 0.63, over the last 150"),
    ],
)
def test_alert_states_a_mean_that_went_the_other_way(after: float, summary: str) -> None:
    assert stated("the reward", Shift(rises=False, before=0.6, after=after, values=150)).startswith(summary)


def test_alert_is_cleared_once_the_new_level_is_the_usual_one() -> None:
    (raised, _, first), (ended, _, last) = alerts(rewards(1, 2200, Planted(600, {"judge": -0.2})))
    assert first.alert is not None
    assert last.alert is not None
    assert ended == raised + SETTLED
    assert (last.alert.cleared, last.alert.key) == (True, first.alert.key)
    assert last.alert.alert_id != first.alert.alert_id


def test_fold_goes_on_from_what_was_stored() -> None:
    drift: dict[str, Watch] | None = None
    for number, scored in enumerate(rewards(2, 800, Planted(550, {"judge": -0.3})), 1):
        drift = watch_reward(drift, received(scored, number))
        if number % 97 == 0:
            stored = msgspec.json.decode(msgspec.json.encode(drift), type=dict[str, Watch])
            assert stored == drift
            drift = stored
    assert drift is not None
    assert drift["judge"].alert is not None


def test_standing_has_what_is_compared_now() -> None:
    drift: dict[str, Watch] | None = None
    for number, scored in enumerate(rewards(3, 20), 1):
        drift = watch_reward(drift, received(scored, number))
    assert drift is not None
    shown = standing("support.standard-1", drift)
    assert (shown.role, shown.function) == ("support", "standard-1")
    by_name = {metric.metric: metric for metric in shown.metrics}
    assert by_name["reward"].trajectories == 20
    assert by_name["reward"].mean == pytest.approx(0.53, abs=0.1)
    assert by_name["reward"].alert is None
