"""Learning from pairs: only the answers learn, the start is the reference, held-out pairs measure the gain."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace, replace as changed

from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.errors import DataUnusable, StopRequested
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.dpo import Preference
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import pair_rows
from ratchet.trainer_worker.training.learner.preferences import score_all
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, save_policy
from tests.support.snapshot_rows import pair_row
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, trained

HYPER = Hyperparameters(learning_rate=5e-3, batch_size=8, max_steps=6, full_finetune=True, seed=3, beta=0.5)
LORA = Hyperparameters(learning_rate=1e-2, batch_size=8, max_steps=4, lora=Lora(r=4, alpha=8), seed=3)


def test_preferences_are_learnt_and_hold_on_prompts_that_were_held_out(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    run = RecordingRun(tmp_path, "dpo")
    hyper = changed(HYPER, max_steps=60)
    _, outcome = trained(run, base, pairs, hyper, holdout=0.25)
    first, last = run.steps[0].metrics, run.steps[-1].metrics
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert first["margin"] == pytest.approx(0.0, abs=1e-4)
    assert last["loss"] < 0.5 * first["loss"]
    assert last["accuracy"] > 0.8
    assert last["margin"] == pytest.approx(last["rewards_chosen"] - last["rewards_rejected"], abs=1e-4)
    assert {"grad_norm", "learning_rate"} <= last.keys()
    assert outcome.evaluation is not None
    scores = outcome.evaluation.benchmark_scores
    assert scores is not None
    assert scores["holdout_pairs"] == 12
    assert (outcome.samples, outcome.metrics["held_out_pairs"]) == (36, 12)
    assert scores["holdout_win_rate"] >= 0.5 + 0.05
    assert (outcome.evaluation.improvement_over_baseline or 0) >= 0.05
    assert scores["improvement_low"] < (outcome.evaluation.improvement_over_baseline or 0) < scores["improvement_high"]
    assert scores["holdout_accuracy"] - scores["holdout_accuracy_before"] == pytest.approx(
        outcome.evaluation.improvement_over_baseline
    )
    assert scores["holdout_win_rate_low"] < scores["holdout_win_rate"] <= scores["holdout_win_rate_high"]


def test_stopped_and_resumed_training_ends_bit_for_bit_like_unbroken_one(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    unbroken = RecordingRun(tmp_path / "whole", "dpo")
    whole, outcome = trained(unbroken, base, pairs, HYPER, holdout=0.25)
    broken = RecordingRun(tmp_path / "half", "dpo", stop_after=3)
    with pytest.raises(StopRequested):
        trained(broken, base, pairs, HYPER, holdout=0.25)
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, "dpo")
    assert checkpoint.manifest.step == 3
    rest = RecordingRun(tmp_path / "rest", "dpo", resume=checkpoint)
    resumed, again = trained(rest, base, pairs, HYPER, holdout=0.25)
    assert [step.number for step in rest.steps] == [4, 5, 6]
    assert [step.metrics for step in unbroken.steps] == [step.metrics for step in [*broken.steps, *rest.steps]]
    assert again.evaluation == outcome.evaluation
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_starting_adapter_is_the_reference_and_stays_as_it_was(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    first, _ = trained(RecordingRun(tmp_path / "one", "dpo"), base, pairs, LORA)
    saved = tmp_path / "adapter"
    save_policy(first, saved, "s3://bucket/policies/base.json")
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in saved.iterdir()}
    run = RecordingRun(tmp_path / "two", "dpo", every=2)
    hyper = Hyperparameters(learning_rate=1e-2, batch_size=8, max_steps=4, seed=3)
    second, _ = trained(run, base, pairs, hyper, adapter=str(saved))
    # The first margin is against the adapter, not against the base, which the adapter has already left.
    assert run.steps[0].metrics["margin"] == pytest.approx(0.0, abs=1e-4)
    assert preferred(second, pairs) > preferred(first, pairs)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in saved.iterdir()} == before
    continued = tmp_path / "continued"
    save_policy(second, continued, "s3://bucket/policies/base.json")
    assert {path.name for path in continued.iterdir()} == set(before)
    assert all(path.is_file() for path in run.newest().directory.iterdir())


def test_the_reference_of_a_new_adapter_is_the_base(base: str, pairs: list[PairRow], tmp_path: Path) -> None:
    spec = job_spec("dpo", base=base, hyper=LORA)
    policy = load_policy(spec)
    model: Any = policy.model
    before = preferred(policy, pairs)
    rows = [pair.chosen for pair in pair_rows(ChatRows(policy.tokenizer, 512), pairs[:8]).pairs]
    with_adapter = score_all(Scorer(policy.model), rows)
    with model.disable_adapter():
        assert torch.equal(score_all(Scorer(policy.model), rows), with_adapter)
    load_train("dpo")(spec, policy, pairs, RecordingRun(tmp_path, "dpo"))
    with model.disable_adapter():
        assert torch.equal(score_all(Scorer(policy.model), rows), with_adapter)
    assert preferred(policy, pairs) > before


def preferred(policy: TrainedPolicy, pairs: list[PairRow]) -> float:
    """By how many nats the chosen sides are likelier than the rejected ones, on average."""
    made = pair_rows(ChatRows(policy.tokenizer, 512), pairs).pairs
    scores = score_all(Scorer(policy.model), [side for pair in made for side in (pair.chosen, pair.rejected)])
    return float((scores[0::2] - scores[1::2]).mean())


def test_only_the_assistants_words_after_the_prompt_learn(base: str) -> None:
    policy = load_policy(job_spec("dpo", base=base, hyper=HYPER))
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    prompt = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "What colour?"},
    ]
    chosen = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "red"},
        {"role": "assistant", "content": "It is red."},
    ]
    rejected = [{"role": "assistant", "content": "Green."}]
    pair = pair_row(prompt=prompt, chosen=chosen, rejected=rejected)
    (made,) = pair_rows(ChatRows(policy.tokenizer, 512), [pair]).pairs
    assert [learnt(policy, row) for row in made.chosen] == ["<|call|>look {}<|end|>It is red.<|end|>"]
    assert [learnt(policy, row) for row in made.rejected] == ["Green.<|end|>"]


def test_earlier_answers_in_a_prompt_learn_in_no_pair_of_many(base: str, pairs: list[PairRow]) -> None:
    policy = load_policy(job_spec("dpo", base=base, hyper=HYPER))
    made = pair_rows(ChatRows(policy.tokenizer, 512), pairs).pairs
    for pair, given in zip(made, pairs, strict=True):
        assert [learnt(policy, row) for row in pair.chosen] == [f"{given.chosen[0]['content']}<|end|>"]
        assert [learnt(policy, row) for row in pair.rejected] == [f"{given.rejected[0]['content']}<|end|>"]


def learnt(policy: TrainedPolicy, row: Any) -> str:
    tokenizer: Any = policy.tokenizer
    return tokenizer.decode(row.trained_ids.tolist())


def test_pairs_without_two_usable_answers_are_left_out_and_counted(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    one = pairs[0]
    equal = pair_row(preference_id="same", prompt=one.prompt, chosen=one.chosen, rejected=one.chosen)
    silent = pair_row(
        preference_id="silent", prompt=one.prompt, chosen=one.chosen, rejected=[{"role": "user", "content": "?"}]
    )
    policy = load_policy(job_spec("dpo", base=base, hyper=HYPER))
    made = pair_rows(ChatRows(policy.tokenizer, 512), [equal, one, silent])
    assert (len(made.pairs), made.equal, made.unusable) == (1, 1, 1)
    with pytest.raises(DataUnusable, match="none of 2 pairs has two different answers"):
        pair_rows(ChatRows(policy.tokenizer, 512), [equal, silent])
    with pytest.raises(DataUnusable, match="leaves none of 48 pairs"):
        trained(RecordingRun(tmp_path, "dpo"), base, pairs, HYPER, holdout=1.0)


def test_a_hold_out_that_would_hold_out_nothing_is_refused(base: str, pairs: list[PairRow], tmp_path: Path) -> None:
    one_task = [replace(pair, group_key="the same") for pair in pairs]
    with pytest.raises(DataUnusable, match=r"a holdout_size of 0.25 holds out none of 48 pairs"):
        trained(RecordingRun(tmp_path, "dpo"), base, one_task, HYPER, holdout=0.25)


def test_a_stop_while_the_reference_is_scored_ends_the_training_at_once(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    run = RecordingRun(tmp_path, "dpo", asks=2)
    with pytest.raises(StopRequested):
        trained(run, base, pairs, changed(HYPER, pass_tokens=200))
    assert (run.asks, run.steps, run.store.all()) == (-1, [], [])


def test_stop_while_held_out_pairs_are_judged_leaves_the_newest_checkpoint(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    # One pass for the reference, five train steps that are not the last, one checkpoint; then the judging.
    run = RecordingRun(tmp_path, "dpo", asks=7, every=3)
    with pytest.raises(StopRequested):
        trained(run, base, pairs, HYPER, holdout=0.25)
    assert len(run.steps) == 6
    assert run.newest().manifest.step == 3


def test_micro_batches_of_pairs_give_the_loss_of_the_whole_batch(
    base: str, pairs: list[PairRow], tmp_path: Path
) -> None:
    whole, split = RecordingRun(tmp_path / "a", "dpo"), RecordingRun(tmp_path / "b", "dpo")
    trained(whole, base, pairs, changed(HYPER, batch_size=48, max_steps=2))
    trained(split, base, pairs, changed(HYPER, batch_size=12, gradient_accumulation=4, max_steps=2))
    assert split.losses == pytest.approx(whole.losses, abs=1e-3)


def test_the_loss_does_not_depend_on_what_else_is_in_the_batch(base: str, pairs: list[PairRow]) -> None:
    policy = load_policy(job_spec("dpo", base=base, hyper=HYPER))
    made = pair_rows(ChatRows(policy.tokenizer, 512), pairs).pairs
    reference = (torch.zeros(len(made)), torch.zeros(len(made)))
    objective = Preference(Scorer(policy.model), made, reference, 0.01, 0.0)
    with torch.no_grad():
        together = sum(float(loss.total) for loss in objective.losses([4, 17, 30]))
        alone = sum(float(loss.total) for index in (4, 17, 30) for loss in objective.losses([index]))
    assert together == pytest.approx(alone, abs=1e-4)
