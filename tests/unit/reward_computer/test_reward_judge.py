"""The judge's component: whose judgement counts, with which weight, and what the reward says of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet.bus.consumer import Done
from ratchet.core.contract import Feedback, Outcome, Reward
from ratchet.core.contract.reward import JUDGEMENT, JudgeRef
from ratchet.core.errors import ConfigError
from ratchet.core.judging.calibration import Calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.service.contracts import load_contracts
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.components.judge import judge
from ratchet.reward_computer.domain.normalization import add_reward
from ratchet.reward_computer.domain.reward import Circumstances, RewardSpec, reward_of
from ratchet.reward_computer.settings import Settings, spec_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, StoredFacts, computer, feedback, received

PROFILE = JudgeProfile("openai/gpt-5-mini")
AGREED = Calibration(labels=60, agreed=55, kappa=0.8, low=0.6, high=0.95)
SPEC = RewardSpec(
    function=FUNCTION,
    weights={"support": {"task_completion": 0.5, "judge": 0.5}},
    judges={"default": PROFILE},
    calibrations={PROFILE.digest: AGREED},
)


def judgement(number: int = 1, value: Any = 0.25, by: JudgeProfile = PROFILE, **changes: Any) -> Feedback:
    ref = JudgeRef(digest=by.digest, rubric_digest=by.rubric_digest, model="gpt-5-mini-2026")
    parts: dict[str, Any] = {"kind": JUDGEMENT, "value": value, "rater": by.rater, "judge": ref}
    made = feedback(number, **(parts | {"reasoning": "It named the wrong day."} | changes))
    load_contracts().check_strict(made)
    return made


def rewarded(spec: RewardSpec, *opinions: Feedback) -> Reward:
    made = reward_of(spec, Evidence(trajectory(), opinions), Circumstances(AT))
    load_contracts().check_strict(made)
    return made


def test_newest_judgement_of_the_own_judge_counts_with_its_words() -> None:
    other = judgement(9, 1.0, by=JudgeProfile("openai/gpt-5-mini", "Be kind."))
    opinions = [judgement(1, 0.9), judgement(2, 0.25), other, feedback(3, value=True)]
    assessment = judge(Evidence(trajectory(), opinions, judge=PROFILE.digest))
    assert assessment is not None
    assert (assessment.score, assessment.reasoning) == (0.25, "It named the wrong day.")


@pytest.mark.parametrize("opinions", [[], [feedback(1)], [judgement(1, by=JudgeProfile("other"))]])
def test_judge_without_a_judgement_does_not_apply(opinions: list[Feedback]) -> None:
    assert judge(Evidence(trajectory(), opinions, judge=PROFILE.digest)) is None


def test_reward_names_judge_rubric_model_and_function() -> None:
    made = rewarded(SPEC, judgement())
    assert made.metadata.digests == {
        "function": SPEC.digest,
        "judge": PROFILE.digest,
        "rubric": PROFILE.rubric_digest,
        "judge_model": "gpt-5-mini-2026",
    }
    assert (made.total_reward, made.metadata.evaluation_method) == (pytest.approx(0.5 * 1.0 + 0.5 * 0.25), "hybrid")


@pytest.mark.parametrize(
    "known",
    [
        {},
        {PROFILE.digest: Calibration(labels=49, agreed=49, kappa=1.0, low=0.9, high=1.0)},
        {PROFILE.digest: Calibration(labels=500, agreed=300, kappa=0.05, low=-0.03, high=0.13)},
        {JudgeProfile("other").digest: AGREED},
    ],
)
def test_judge_that_people_have_not_agreed_with_weighs_nothing(known: dict[str, Calibration]) -> None:
    made = rewarded(replace(SPEC, calibrations=known), judgement())
    part = made.reward_components["judge"]
    assert (part.applicable, part.weight, part.score) == (True, 0.0, 0.25)
    assert (made.total_reward, made.metadata.evaluation_method) == (1.0, "automated")


def test_where_only_an_uncalibrated_judge_knows_something_nothing_is_known() -> None:
    made = rewarded(replace(SPEC, weights={"support": {"judge": 1.0}}, calibrations={}), judgement())
    assert (made.total_reward, made.metadata.confidence) == (0.0, 0.0)


def test_digest_of_a_function_changes_with_whatever_a_reward_depends_on() -> None:
    changes: list[dict[str, Any]] = [
        {"weights": {"support": {"judge": 1.0}}},
        {"methods": {"support": "none"}},
        {"window": 50},
        {"dense": False},
        {"judges": {"default": JudgeProfile("openai/gpt-5-mini", "Be kind.")}},
        {"calibrations": {}},
    ]
    specs = [SPEC, *(replace(SPEC, **change) for change in changes)]
    assert len({spec.digest for spec in specs}) == len(specs)


def test_each_role_has_its_own_normalisation() -> None:
    spec = spec_of(Settings(normalization={"support": "none", "default": "min-max"}))
    assert [spec.method_of(role) for role in ("support", "coder")] == ["none", "min-max"]
    made = reward_of(spec, Evidence(trajectory()), Circumstances(AT))
    assert (made.reward_components["task_completion"].parameters or {})["method"] == "none"


def test_weight_for_a_judge_that_is_not_set_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="role support weighs `judge`"):
        spec_of(Settings(weights={"support": {"judge": 0.5}}))


async def test_judgement_makes_the_next_revision_and_the_same_one_none() -> None:
    facts = StoredFacts()
    facts.store(trajectory())
    handlers = computer(facts, spec=SPEC)
    (first,) = await handlers.first_rewards([received(trajectory())])
    assert isinstance(first, Done)
    facts.store(first.events[0])
    facts.store(judgement())
    (revised,) = await handlers.revisions([received(judgement())])
    assert isinstance(revised, Done)
    (reward,) = revised.events
    assert isinstance(reward, Reward)
    assert (reward.revision, reward.reward_components["judge"].score) == (1, 0.25)
    facts.store(reward)
    (again,) = await handlers.revisions([received(judgement(), delivered=2)])
    assert again == Done([])


async def test_judgement_of_another_judge_makes_no_revision() -> None:
    facts, other = StoredFacts(), judgement(by=JudgeProfile("other"))
    facts.store(trajectory())
    handlers = computer(facts, spec=SPEC)
    (first,) = await handlers.first_rewards([received(trajectory())])
    assert isinstance(first, Done)
    for message in (first.events[0], other):
        facts.store(message)
    assert await handlers.revisions([received(other)]) == [Done([])]


def test_judgements_are_part_of_the_past_of_normalisation() -> None:
    made = reward_of(SPEC, Evidence(trajectory(), [judgement()]), Circumstances(AT + timedelta(hours=1), revision=1))
    assert add_reward(None, received(made)).scores["judge"] == [0.25]
    again = reward_of(SPEC, Evidence(trajectory(), [judgement()]), Circumstances(AT, revision=2, scored=["judge"]))
    assert "judge" not in add_reward(None, received(again)).scores


def test_bad_outcome_and_good_judgement_share_the_total() -> None:
    failed = trajectory(outcome=Outcome(status="failure"))
    made = reward_of(SPEC, Evidence(failed, [judgement(value=1.0)]), Circumstances(AT))
    assert made.total_reward == pytest.approx(0.5)
