"""What the engine drew within a grammar, the learner scores within the same one; what it cannot is never trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from ratchet.core.contract.snapshot import Call, TrajectoryRow
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.contract.turn import Constraint
from ratchet.core.datasets.domain.sequences import ids_of
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_policies import load_weights, serve
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.masks import REJECTED, UNMASKED, UNUSABLE, Answer, Masks, end_ids
from ratchet.trainer_worker.training.learner.rows import MergeCounts, Row, policy_data, rows_of
from ratchet.trainer_worker.training.learner.start import behavior_logprobs, check_off_policy, score_start
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.grammars import constraint, read_tokenizer, shared_compiler
from tests.support.snapshot_rows import trajectory_row
from tests.support.tiny_models import write_tiny_model
from tests.support.trainer_runs import RecordingRun, job_spec

PROMPT = list(range(20, 50))
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["id"]}
TOOLS = [{"type": "function", "function": {"name": "send", "parameters": SCHEMA, "strict": True}}]
ASKED: list[Constraint | None] = [
    constraint(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
    None,
    constraint(guided_regex="[a-z ]{3,12}", stop_token_ids=[3]),
    constraint(tools=TOOLS, tool_choice="required"),
    constraint(tools=TOOLS),
    constraint(guided_choice=["sent", "sent on monday"]),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), ["where is my order K47", "it was sent on monday"])


@pytest.fixture(scope="module")
def calls(directory: Path) -> list[Call]:
    """Calls that one batch of the engine answered, constrained and free, at different temperatures."""
    served, compiler = serve(load_weights(directory), None), shared_compiler()
    ends: dict[int, Completion] = {}

    def on_update(index: int, update: Update) -> None:
        assert isinstance(update.end, Completion)
        ends[index] = update.end

    asked = [(one, temperature) for temperature in (0.6, 1.4) for one in ASKED]
    jobs: list[Job] = []
    for index, (one, temperature) in enumerate(asked):
        grammar = one and compiler.compile(served.text.tokens(served.network.vocabulary), one)
        sampling = Sampling(
            temperature=temperature, seed=index, stop_token_ids=tuple(one.stop_token_ids if one else ())
        )
        jobs.append(Job(PROMPT, sampling, 30, partial(on_update, index), grammar=grammar))
    with torch.inference_mode():
        batch = Batch(served.network, served.text.end_ids, 0, seed=1)
        updates = batch.join(jobs)
        while len(batch):
            updates += batch.step()
    for update in updates:
        update.job.on_progress(update)
    return [_call(index, one, temperature, ends[index]) for index, (one, temperature) in enumerate(asked)]


def _call(index: int, one: Constraint | None, temperature: float, done: Completion) -> Call:
    return Call(
        turn_id=f"turn{index}",
        prompt_token_ids=PROMPT,
        output_token_ids=list(done.token_ids),
        behavior_logprobs=list(done.logprobs),
        temperature=temperature,
        constraint=one,
        trainable=True,
    )


@pytest.fixture(scope="module")
def masks(directory: Path) -> Iterator[Masks]:
    tokenizer = read_tokenizer(directory)
    made = Masks(tokenizer, str(directory), len(tokenizer))
    yield made
    made.close()


@pytest.fixture
def model(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory)


def trajectories(calls: Sequence[Call]) -> list[TrajectoryRow]:
    """One try each, in groups whose rewards differ."""
    return [
        trajectory_row(index, calls=[one], task_key=f"k{index % 3}", reward=float(index % 2))
        for index, one in enumerate(calls)
    ]


def learnt(calls: Sequence[Call], masks: Masks) -> tuple[list[Row], MergeCounts]:
    counts = MergeCounts()
    rows = [row for one in calls for row in rows_of(trajectory_row(calls=[one]), counts, allowed_of=masks.allowed)]
    return rows, counts


def behaviour(rows: Sequence[Row]) -> torch.Tensor:
    return behavior_logprobs(rows)


@pytest.mark.slow
def test_learner_gives_the_engine_s_logprobs_of_constrained_and_free_calls(
    calls: list[Call], masks: Masks, model: Any
) -> None:
    rows, counts = learnt(calls, masks)
    assert len(rows) == len(calls)
    assert not counts.untrainable
    for scorer in (Scorer(model), Scorer(model, chunk_elements=7 * model.config.vocab_size)):
        scores = scorer.score(rows)
        assert scores.logprobs_N.tolist() == pytest.approx(behaviour(rows).tolist(), abs=1e-4)
        assert torch.isfinite(scores.entropy_N).all()
        assert (scores.entropy_N >= 0).all()
    start = score_start(Scorer(model), rows, referenced=range(len(rows)), fresh=True, features=None)
    assert check_off_policy(rows, start, None) == pytest.approx(1.0, abs=1e-4)


def test_without_the_masks_the_same_tokens_look_like_another_policy_s(
    calls: list[Call], masks: Masks, model: Any
) -> None:
    rows, _ = learnt([one for one in calls if one.constraint is not None], masks)
    scores = Scorer(model).score([dataclasses.replace(row, masks=()) for row in rows])
    assert float((scores.logprobs_N.detach() - behaviour(rows)).abs().max()) > 0.5


def test_gradients_are_finite_also_through_the_entropy(calls: list[Call], masks: Masks, model: Any) -> None:
    rows, _ = learnt(calls, masks)
    scores = Scorer(model).score(rows, entropy_gradient=True)
    (scores.logprobs_N.sum() + scores.entropy_N.sum()).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_constrained_answer_is_a_row_with_free_ones_of_its_conversation(
    calls: list[Call], masks: Masks, model: Any
) -> None:
    first, free = calls[0], calls[1]
    longer = [*PROMPT, *first.output_token_ids, 60, 61]
    later = replace(free, prompt_token_ids=longer)
    (row,) = rows_of(trajectory_row(calls=[first, later]), allowed_of=masks.allowed)
    size = len(first.output_token_ids)
    assert [mask is not None for mask in row.trained_masks] == [True] * size + [False] * len(free.output_token_ids)
    score = Scorer(model).score([row]).logprobs_N[:size]
    assert score.tolist() == pytest.approx(first.behavior_logprobs, abs=1e-4)
    cut = row.up_to(len(PROMPT) + 1)
    assert len(cut.trained_masks) == cut.trained == 1


@pytest.mark.parametrize("algorithm", ["rloo", pytest.param("ppo", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_algorithms_train_on_them(
    calls: list[Call], directory: Path, model: Any, algorithm: str, tmp_path: Path
) -> None:
    policy = TrainedPolicy(model, read_tokenizer(directory), "model", bf16=False, fresh=True)
    hyper = Hyperparameters(learning_rate=1e-3, batch_size=8, full_finetune=True, kl_beta=0.1, epochs=1)
    run = RecordingRun(tmp_path, algorithm)
    outcome = load_train(algorithm)(
        job_spec(algorithm, base=str(directory), hyper=hyper), policy, trajectories(calls), run
    )
    assert outcome.metrics["start_ess"] == pytest.approx(1.0, abs=1e-3)
    assert outcome.metrics["rows"] > 0
    assert outcome.metrics["unmasked_calls"] == 0


def test_what_grammar_does_not_allow_or_did_not_force_is_never_trained_on(calls: list[Call], masks: Masks) -> None:
    schema, choice = calls[6], calls[11]
    assert len(choice.output_token_ids) > 1
    wrong = [
        (replace(schema, output_token_ids=[60, *schema.output_token_ids[1:]]), REJECTED),
        (replace(schema, output_token_ids=[10_000, *schema.output_token_ids[1:]]), REJECTED),
        (replace(choice, behavior_logprobs=[-0.5] * len(choice.output_token_ids)), UNMASKED),
        (replace(schema, constraint=Constraint(kind="smoke", specification="", member="x")), UNUSABLE),
        (replace(schema, constraint=Constraint(kind="regex", specification="(", member="x")), UNUSABLE),
        (
            replace(
                choice,
                output_token_ids=[*choice.output_token_ids, 5],
                behavior_logprobs=[*choice.behavior_logprobs, -1.0],
            ),
            UNUSABLE,
        ),
    ]
    for one, reason in wrong:
        rows, counts = learnt([one], masks)
        assert (rows, counts.untrainable) == ([], {reason: 1})
    with pytest.raises(DataUnusable, match=REJECTED):
        policy_data([trajectory_row(0, calls=[wrong[0][0]])], None, mirrored=False, allowed_of=masks.allowed)


def test_a_constrained_call_never_learns_where_its_masks_are_not_known(calls: list[Call]) -> None:
    assert rows_of(trajectory_row(calls=[calls[0]])) == []


def test_equal_masks_are_kept_once(calls: list[Call], masks: Masks) -> None:
    first = calls[0]
    answer = Answer(ids_of(first.output_token_ids), np.array(first.behavior_logprobs, np.float32), first.constraint)
    twice = [masks.allowed(answer) for _ in range(2)]
    assert all(one is other for one, other in zip(*twice, strict=True))


@pytest.mark.slow
def test_answers_end_as_the_engine_s_do(directory: Path, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(directory)
    assert end_ids(tokenizer, str(directory)) == [tokenizer.eos_token_id]
    assert end_ids(tokenizer, str(tmp_path)) == [tokenizer.eos_token_id]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    assert end_ids(tokenizer, str(tmp_path)) == [1, 5]
