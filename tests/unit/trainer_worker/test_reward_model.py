"""A reward model: what is preferred gets the higher reward, also among pairs that were held out, and no loader of
policies takes it for one.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from peft import AutoPeftModelForSequenceClassification
from transformers import AutoModelForSequenceClassification

from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.errors import StopRequested
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import pair_rows
from ratchet.trainer_worker.training.learner.ranking import auc, auc_interval, auc_over_tasks
from ratchet.trainer_worker.training.learner.rewards import (
    check_reading,
    read_pair,
    reward_all,
    reward_loss,
    right_by_length,
)
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, save_policy
from tests.support.snapshot_rows import pair_row
from tests.support.tiny_models import write_family
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, trained

HYPER = Hyperparameters(learning_rate=3e-3, batch_size=8, max_steps=6, full_finetune=True, seed=3)
LORA = replace(HYPER, learning_rate=1e-2, full_finetune=False, lora=Lora(r=4, alpha=8))


def test_what_is_preferred_is_rewarded_more_also_where_it_was_held_out(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    run = RecordingRun(tmp_path, REWARD_MODEL)
    _, outcome = trained(run, base, pairs, replace(HYPER, max_steps=100), holdout=0.25)
    first, last = run.steps[0].metrics, run.steps[-1].metrics
    assert first["loss"] == pytest.approx(0.69, abs=0.05)
    assert last["loss"] < 0.5 * first["loss"]
    assert (last["accuracy"], last["auc"]) == (1.0, 1.0)
    assert last["margin"] == pytest.approx(last["rewards_chosen"] - last["rewards_rejected"], abs=1e-4)
    assert (outcome.samples, outcome.metrics["held_out_pairs"]) == (36, 12)
    assert outcome.metrics["train_accuracy"] == 1.0
    assert outcome.evaluation is not None
    scores = outcome.evaluation.benchmark_scores
    assert scores is not None
    assert scores["holdout_auc"] > 0.6
    assert scores["holdout_auc_low"] < scores["holdout_auc"] <= scores["holdout_auc_high"]
    assert scores["holdout_accuracy_low"] < scores["holdout_accuracy"] <= scores["holdout_accuracy_high"]
    assert 0 < scores["holdout_loss"] < 0.5
    assert outcome.evaluation.improvement_over_baseline == pytest.approx(
        scores["holdout_accuracy"] - scores["holdout_length_accuracy"]
    )


@pytest.mark.parametrize("hyper", [HYPER, LORA], ids=["full", "lora"])
def test_stopped_and_resumed_training_ends_bit_for_bit_like_unbroken_one(
    hyper: Hyperparameters, base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    unbroken = RecordingRun(tmp_path / "whole", REWARD_MODEL)
    whole, outcome = trained(unbroken, base, pairs, hyper, holdout=0.25)
    broken = RecordingRun(tmp_path / "half", REWARD_MODEL, stop_after=3)
    with pytest.raises(StopRequested):
        trained(broken, base, pairs, hyper, holdout=0.25)
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, REWARD_MODEL)
    rest = RecordingRun(tmp_path / "rest", REWARD_MODEL, resume=checkpoint)
    resumed, again = trained(rest, base, pairs, hyper, holdout=0.25)
    assert [step.metrics for step in unbroken.steps] == [step.metrics for step in [*broken.steps, *rest.steps]]
    assert again.evaluation == outcome.evaluation
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("hyper", [HYPER, LORA], ids=["full", "lora"])
def test_its_files_give_the_same_rewards_in_other_hands(
    hyper: Hyperparameters, base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    policy, _ = trained(RecordingRun(tmp_path / "run", REWARD_MODEL), base, pairs, hyper)
    chosen, rejected = rewards(policy, pairs)
    save_policy(policy, tmp_path / "out", base)
    other: Any = AutoPeftModelForSequenceClassification if hyper is LORA else AutoModelForSequenceClassification
    loaded = other.from_pretrained(tmp_path / "out", num_labels=1).eval()
    loaded.config.pad_token_id = policy.pad
    # All sides in one batch, padded on the right, rendered by the template alone.
    tokenizer: Any = policy.tokenizer
    chats = [[*pair.prompt, *pair.chosen] for pair in pairs] + [[*pair.prompt, *pair.rejected] for pair in pairs]
    batch = tokenizer.apply_chat_template(chats, padding=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        theirs = loaded(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
    assert torch.allclose(torch.cat([chosen, rejected]), theirs, atol=1e-4)
    assert policy.kind == REWARD_MODEL


def test_a_conversation_is_read_at_its_last_token_that_is_no_padding(base: str, pairs: list[PairRow]) -> None:
    policy = load_policy(job_spec(REWARD_MODEL, base=base, hyper=HYPER))
    (pair,) = pair_rows(ChatRows(policy.tokenizer, 512), pairs[:1]).pairs
    row = pair.chosen[-1]
    newline, end = int(row.token_ids[-1]), int(row.token_ids[-2])
    assert (read_pair(pair, None).chosen.length, read_pair(pair, end).chosen.length) == (row.length, row.length)
    # Where the padding token is the one that ends a row, transformers reads the token before.
    assert read_pair(pair, newline).chosen.length == row.length - 1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "mistral", "gpt2"])
def test_rewards_are_read_as_each_family_reads_them(family: str, pairs: list[PairRow], tmp_path: Path) -> None:
    base = write_family(tmp_path, family, torch.float32)
    policy = load_policy(job_spec(REWARD_MODEL, base=str(base), hyper=HYPER))
    read = [read_pair(pair, policy.pad) for pair in pair_rows(ChatRows(policy.tokenizer, 256), pairs[:4]).pairs]
    check_reading(Scorer(policy.model), read)
    assert float(torch.cat(reward_all(Scorer(policy.model), read)).abs().max()) > 0


def test_weights_of_a_policys_adapter_are_where_a_full_fine_tune_starts(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    spec = job_spec("dpo", base=base, hyper=replace(LORA, max_steps=2))
    policy = load_policy(spec)
    load_train("dpo")(spec, policy, pairs, RecordingRun(tmp_path / "dpo", "dpo"))
    save_policy(policy, tmp_path / "adapter", base)
    again = job_spec(REWARD_MODEL, base=base, hyper=HYPER, adapter=str(tmp_path / "adapter"))
    started: Any = load_policy(again).model
    merged: Any = policy.model
    merged = merged.merge_and_unload()
    one, other = (dict(model.named_parameters())["model.layers.0.mlp.up_proj.weight"] for model in (started, merged))
    assert torch.allclose(one, other)
    assert all(parameter.requires_grad for parameter in started.parameters())
    with pytest.raises(Rejected, match="is for a model, not for another adapter"):
        load_policy(replace(again, config=replace(again.config, hyperparameters=LORA)))


def test_micro_batches_of_pairs_give_the_loss_of_the_whole_batch(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    whole, split = RecordingRun(tmp_path / "a", REWARD_MODEL), RecordingRun(tmp_path / "b", REWARD_MODEL)
    trained(whole, base, pairs, replace(HYPER, batch_size=48, max_steps=2, center_rewards_coefficient=0.1))
    hyper = replace(HYPER, batch_size=12, gradient_accumulation=4, max_steps=2, center_rewards_coefficient=0.1)
    trained(split, base, pairs, replace(hyper, pass_tokens=100))
    assert split.losses == pytest.approx(whole.losses, abs=1e-4)


def test_the_loss_is_the_one_worked_out_by_hand() -> None:
    chosen, rejected = torch.tensor([1.0, -0.5]), torch.tensor([0.25, 0.5])
    made = reward_loss(chosen, rejected, center=0.1)
    # log(1 + exp(-0.75)) + 0.1 * 1.25^2, log(1 + exp(1)) + 0.1 * 0^2
    assert made.loss_P.tolist() == pytest.approx([0.3868703 + 0.15625, 1.3132617], abs=1e-6)


def test_the_rule_of_thumb_takes_its_direction_from_what_was_learnt(base: str) -> None:
    policy = load_policy(job_spec(REWARD_MODEL, base=base, hyper=HYPER))

    def read(*contents: tuple[str, str]) -> list[Any]:
        rows = [
            pair_row(
                number,
                prompt=[{"role": "user", "content": "Say it."}],
                chosen=[{"role": "assistant", "content": chosen}],
                rejected=[{"role": "assistant", "content": rejected}],
            )
            for number, (chosen, rejected) in enumerate(contents)
        ]
        return [read_pair(pair, policy.pad) for pair in pair_rows(ChatRows(policy.tokenizer, 512), rows).pairs]

    short, long = ("red", "red red red"), ("red red red", "red")
    assert right_by_length(read(short, short, long), read(short, short, short, long)).tolist() == [1, 1, 1, 0]
    assert right_by_length(read(long), read(short, short, short, long)).tolist() == [0, 0, 0, 1]


# ----------------------------------------------------------------------------------------------------------- ranking
def test_the_auc_is_the_share_of_ordered_pairs_with_ties_as_halves() -> None:
    draw = random.Random(3)
    better, worse = ([float(draw.randrange(8)) for _ in range(count)] for count in (17, 11))
    counted = sum((one > other) + 0.5 * (one == other) for one in better for other in worse)
    assert auc(better, worse) == pytest.approx(counted / (17 * 11))


@pytest.mark.parametrize(("area", "size"), [(0.5, 20), (0.75, 40), (0.97, 40), (1.0, 8), (0.0, 8)])
def test_the_interval_of_an_auc_holds_it_and_shrinks_with_more_answers(area: float, size: int) -> None:
    low, high = auc_interval(area, size, size)
    less_low, less_high = auc_interval(area, 4 * size, 4 * size)
    assert 0 <= low < high <= 1
    assert low <= area <= high
    assert less_high - less_low < high - low
    # A perfect ranking of few answers shows little.
    assert (low < 0.8) or area < 1


def test_interval_of_an_auc_is_nearly_hanleys_and_mcneils_for_many_answers() -> None:
    """By their formula the standard error of 0.75 over 500 and 500 answers is 0.0154."""
    low, high = auc_interval(0.75, 500, 500)
    assert (low, high) == pytest.approx((0.75 - 0.0302, 0.75 + 0.0302), abs=2e-3)


def test_answers_of_one_task_that_are_alike_are_one_observation_of_an_auc() -> None:
    draw = random.Random(1)
    scores, liked = [draw.gauss(0, 1) for _ in range(40)], [draw.random() < 0.5 for _ in range(40)]
    good, bad = ([score for score, up in zip(scores, liked, strict=True) if up is kind] for kind in (True, False))
    area, alone = auc_over_tasks(scores, liked, range(40))
    assert area == pytest.approx(auc(good, bad))
    assert alone == pytest.approx(auc_interval(area, len(good), len(bad)), abs=1e-3)
    four = [value for value in scores for _ in range(4)], [up for up in liked for _ in range(4)]
    assert auc_over_tasks(*four, [task for task in range(40) for _ in range(4)])[1] == pytest.approx(alone, abs=0.01)


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_auc_over_one_task_or_without_spread_shows_little(tasks: int) -> None:
    liked = [number % 2 > 0 for number in range(40)]
    area, (low, high) = auc_over_tasks(
        [float(up) for up in liked], liked, [number // 2 % tasks for number in range(40)]
    )
    assert (area, high) == (1.0, 1.0)
    assert low < 0.5


def rewards(policy: TrainedPolicy, pairs: list[PairRow]) -> tuple[torch.Tensor, torch.Tensor]:
    made = pair_rows(ChatRows(policy.tokenizer, 512), pairs).pairs
    return reward_all(Scorer(policy.model), [read_pair(pair, policy.pad) for pair in made])
