"""Learning from thumbs: liked answers become likelier and disliked ones less, and a resumed training is the same."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace as changed

from ratchet.core.contract.snapshot import LabelRow
from ratchet.core.contract.training import Hyperparameters
from ratchet.trainer_worker.errors import DataUnusable, NoGradient, StopRequested
from ratchet.trainer_worker.training.algorithms.kto import evaluate, labelled_rows, shuffled
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.child_run import read_snapshot
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.preferences import KtoWeights
from ratchet.trainer_worker.training.policy import load_policy
from tests.support.toy_preferences import parrot_labels
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, trained, write_labels

HYPER = Hyperparameters(learning_rate=5e-3, batch_size=16, max_steps=4, full_finetune=True, seed=3, beta=0.5)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> list[LabelRow]:
    return read_snapshot(write_labels(tmp_path_factory.mktemp("labels") / "labels.parquet", parrot_labels()), LabelRow)


def test_liked_answers_are_rewarded_and_disliked_ones_are_not(
    base: str, labels: list[LabelRow], tmp_path: Path
) -> None:
    run = RecordingRun(tmp_path, "kto")
    _, outcome = trained(run, base, labels, changed(HYPER, max_steps=48))
    first = run.steps[0].metrics
    epoch = [step.metrics for step in run.steps[-6:]]
    last = {name: statistics.fmean(metrics[name] for metrics in epoch) for name in epoch[0]}
    assert first["loss"] == pytest.approx(0.5, abs=1e-3)
    assert last["loss"] < 0.8 * first["loss"]
    assert last["rewards_chosen"] > last["rewards_rejected"]
    assert last["margin"] > 0.5
    assert last["accuracy"] > 0.7
    assert last["kl_divergence"] >= 0
    assert (outcome.samples, outcome.metrics["liked"], outcome.metrics["disliked"]) == (96, 48, 48)


def test_held_out_answers_measure_what_was_learnt(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    run = RecordingRun(tmp_path, "kto")
    _, outcome = trained(run, base, labels, changed(HYPER, max_steps=48), holdout=0.25)
    assert outcome.evaluation is not None
    scores = outcome.evaluation.benchmark_scores
    assert scores is not None
    # Both answers to a prompt are on the same side.
    assert (scores["holdout_liked"], scores["holdout_disliked"]) == (12, 12)
    assert (outcome.samples, outcome.metrics["held_out_labels"]) == (72, 24)
    assert scores["holdout_auc"] > 0.6
    assert scores["holdout_auc_low"] < scores["holdout_auc"] <= scores["holdout_auc_high"]
    assert outcome.evaluation.improvement_over_baseline == pytest.approx(scores["holdout_auc"] - 0.5)
    assert scores["holdout_rewards_chosen"] > scores["holdout_rewards_rejected"]
    assert scores["holdout_margin"] == pytest.approx(
        scores["holdout_rewards_chosen"] - scores["holdout_rewards_rejected"]
    )
    assert scores["holdout_loss"] < 0.5
    assert scores["holdout_kl"] >= 0
    assert run.steps[-1].metrics["auc"] > 0.6


def test_the_policy_at_the_start_shows_nothing_on_what_is_held_out(
    base: str, labels: list[LabelRow], tmp_path: Path
) -> None:
    still = changed(HYPER, learning_rate=1e-12, max_steps=1)
    _, outcome = trained(RecordingRun(tmp_path, "kto"), base, labels, still, holdout=0.25)
    assert outcome.evaluation is not None
    scores = outcome.evaluation.benchmark_scores
    assert scores is not None
    assert scores["holdout_loss"] == pytest.approx(0.5, abs=1e-3)
    assert scores["holdout_kl"] == pytest.approx(0, abs=1e-3)


def test_held_out_answers_of_one_kind_have_no_auc(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    liked = [one for one in labels if one.label]
    _, outcome = trained(RecordingRun(tmp_path, "kto"), base, liked, changed(HYPER, max_steps=1), holdout=0.25)
    assert outcome.evaluation is not None
    scores = outcome.evaluation.benchmark_scores or {}
    assert scores.keys() == {
        "holdout_liked",
        "holdout_disliked",
        "holdout_loss",
        "holdout_kl",
        "holdout_rewards_chosen",
    }
    assert outcome.evaluation.improvement_over_baseline is None


def test_a_hold_out_that_would_hold_out_nothing_is_refused(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    one_prompt = [changed(one, prompt=labels[0].prompt) for one in labels]
    with pytest.raises(DataUnusable, match=r"a holdout_size of 0.25 holds out none of 96 labelled answers"):
        trained(RecordingRun(tmp_path, "kto"), base, one_prompt, HYPER, holdout=0.25)


def test_stopped_and_resumed_training_ends_bit_for_bit_like_unbroken_one(
    base: str, labels: list[LabelRow], tmp_path: Path
) -> None:
    unbroken = RecordingRun(tmp_path / "whole", "kto")
    whole, outcome = trained(unbroken, base, labels, HYPER, holdout=0.25)
    broken = RecordingRun(tmp_path / "half", "kto", stop_after=2)
    with pytest.raises(StopRequested):
        trained(broken, base, labels, HYPER, holdout=0.25)
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, "kto")
    rest = RecordingRun(tmp_path / "rest", "kto", resume=checkpoint)
    resumed, again = trained(rest, base, labels, HYPER, holdout=0.25)
    assert again.evaluation == outcome.evaluation
    assert [step.metrics for step in unbroken.steps] == [step.metrics for step in [*broken.steps, *rest.steps]]
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_resumed_with_half_the_batch_has_the_pairs_of_its_scores(
    base: str, labels: list[LabelRow], tmp_path: Path
) -> None:
    """No step is taken, so the policy is its reference: the reference point, a difference of both, is 0."""
    still = changed(HYPER, learning_rate=1e-12)
    first = RecordingRun(tmp_path / "first", "kto", stop_after=1)
    with pytest.raises(StopRequested):
        trained(first, base, labels, still)
    checkpoint = open_checkpoint(first.newest().directory, JOB_ID, "kto")
    rest = RecordingRun(tmp_path / "rest", "kto", resume=checkpoint)
    trained(rest, base, labels, changed(still, batch_size=8, gradient_accumulation=2))
    assert [step.number for step in rest.steps] == [2, 3, 4]
    assert [step.metrics["kl_divergence"] for step in rest.steps] == pytest.approx([0.0] * 3, abs=1e-3)


def test_a_checkpoint_of_other_labels_is_refused(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    first = RecordingRun(tmp_path / "first", "kto", stop_after=1)
    with pytest.raises(StopRequested):
        trained(first, base, labels, HYPER)
    checkpoint = open_checkpoint(first.newest().directory, JOB_ID, "kto")
    rest = RecordingRun(tmp_path / "rest", "kto", resume=checkpoint)
    with pytest.raises(DataUnusable, match="made from 96 examples, the snapshot has 95"):
        trained(rest, base, labels[:95], HYPER)


def test_a_stop_while_the_reference_is_scored_ends_the_training_at_once(
    base: str, labels: list[LabelRow], tmp_path: Path
) -> None:
    run = RecordingRun(tmp_path, "kto", asks=2)
    with pytest.raises(StopRequested):
        trained(run, base, labels, HYPER)
    assert (run.asks, run.steps, run.store.all()) == (-1, [], [])


def test_weights_decide_how_much_each_kind_counts(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    run = RecordingRun(tmp_path, "kto")
    trained(run, base, labels, changed(HYPER, max_steps=1, batch_size=96, desirable_weight=0.5, undesirable_weight=2.0))
    # At the start every value is a half: 48 answers at 0.5 and 48 at 2.0.
    assert run.losses == pytest.approx([0.5 * (0.5 + 2.0) / 2], abs=1e-3)


def test_each_answer_is_also_seen_in_the_place_of_another_one_of_its_batch(base: str, labels: list[LabelRow]) -> None:
    policy = load_policy(job_spec("kto", base=base, hyper=HYPER))
    order = shuffled(labels, seed=1)[:7]
    assert order != labels[:7]
    made = labelled_rows(ChatRows(policy.tokenizer, 512), order, batch=3)
    for place, partner in enumerate([1, 2, 0, 4, 5, 3, 5]):
        own, other, crossed = made[place].rows[0], made[partner].rows[0], made[place].mismatched[0]
        assert crossed.prompt == own.prompt
        assert crossed.token_ids[len(crossed.prompt) :].tolist() == other.token_ids[len(other.prompt) :].tolist()
        assert crossed.trained == other.trained


def test_thumbs_of_one_prompt_are_no_more_tasks(base: str, labels: list[LabelRow]) -> None:
    policy = load_policy(job_spec("kto", base=base, hyper=HYPER))
    draw = random.Random(0)
    reference = torch.tensor([draw.gauss(-20, 5) for _ in labels])

    def width(times: int) -> float:
        made = [one for one in labelled_rows(ChatRows(policy.tokenizer, 512), labels, 96) for _ in range(times)]
        apart = reference.repeat_interleave(times)
        result = evaluate(Scorer(policy.model), made, (apart, apart), KtoWeights(0.1, 1.0, 1.0))
        scores = (result and result.benchmark_scores) or {}
        return scores["holdout_auc_high"] - scores["holdout_auc_low"]

    assert width(4) == pytest.approx(width(1), abs=0.01)


@pytest.mark.parametrize("nothing", [{"beta": 1e-30}, {"max_grad_norm": 1e-20}])
def test_thumbs_that_teach_nothing_are_refused(
    base: str, labels: list[LabelRow], tmp_path: Path, nothing: dict[str, float]
) -> None:
    with pytest.raises(NoGradient, match="no weight would move"):
        trained(RecordingRun(tmp_path, "kto"), base, labels, changed(HYPER, **nothing))


def test_too_few_answers_are_refused(base: str, labels: list[LabelRow], tmp_path: Path) -> None:
    with pytest.raises(DataUnusable, match="two labelled answers or more"):
        trained(RecordingRun(tmp_path, "kto"), base, labels[:1], HYPER)
