"""Planners: torch gives numpy's numbers, each loss has a gradient, and both phases learn."""

import math
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.contract.workflows import TASK_TYPES, SubTaskRun, WorkflowExecution
from ratchet.core.planning import off_policy
from ratchet.core.planning.encoder import encode
from ratchet.core.planning.files import load_planner, read_file
from ratchet.core.planning.learned import TEST, LearnedPlanner, execution_digest, part_of
from ratchet.core.planning.logged import decisions
from ratchet.core.planning.network import NetworkSelector, fresh_weights, gru, pair_scores, sigmoid, softmax
from ratchet.core.planning.rewards import workflow_reward
from ratchet.core.planning.simulator import Teacher, World, play_many
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.planning import algorithms, bandits, policy_gradient, supervised
from ratchet.trainer_worker.training.planning.batches import choices_of, plans_of
from ratchet.trainer_worker.training.planning.network import Network
from ratchet.trainer_worker.training.planning.policy_gradient import Episodes, PolicyGradient
from ratchet.trainer_worker.training.planning.supervised import LOSSES, Supervised


def quiet(step: int, total: int, figures: Mapping[str, float]) -> None:
    """No report."""


@pytest.fixture(scope="module")
def rows() -> list[WorkflowExecution]:
    return play_many(World(1), Teacher(), 120, 1)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    """Fresh, with biases and zeros moved, so that each of them counts."""
    random = np.random.default_rng(3)
    fresh = fresh_weights(len(TASK_TYPES), 1)
    return {name: (w + 0.1 * random.standard_normal(w.shape)).astype(np.float32) for name, w in fresh.items()}


@pytest.fixture(scope="module")
def first(rows: list[WorkflowExecution]) -> bytes:
    """A planner of phase 1 that has hardly learned."""
    return supervised.train(rows, None, Supervised(epochs=2), 0, quiet).blob


def plans_in(rows: list[WorkflowExecution]) -> supervised.Plans:
    return plans_of([(row.instruction, row.plan) for row in rows if row.plan], TASK_TYPES)


def choices_in(rows: list[WorkflowExecution]) -> policy_gradient.Choices:
    return choices_of([decision for row in rows for decision in decisions(row)], TASK_TYPES)


def test_torch_decodes_as_numpy_does(rows: list[WorkflowExecution], weights: dict[str, np.ndarray]) -> None:
    row = rows[0]
    assert row.plan is not None
    with torch.no_grad():
        decoded = Network(weights).decode(plans_in([row]).texts_BF, plans_in([row]).types_BN)
    state = np.tanh(encode(row.instruction) @ weights["plan.text"] + weights["plan.text_bias"])
    states, previous = [], len(TASK_TYPES)
    for index, task in enumerate(row.plan.sub_tasks):
        state = gru(weights, state, weights["plan.previous"][previous])
        states.append(state)
        logits = state @ weights["plan.type"] + weights["plan.type_bias"]
        assert softmax(logits) == pytest.approx(decoded.type_logits_BNT[0, index].softmax(0).numpy(), abs=1e-5)
        stop = state @ weights["plan.stop"] + weights["plan.stop_bias"]
        assert float(stop[0]) == pytest.approx(float(decoded.stop_logits_BM[0, index]), abs=1e-5)
        previous = TASK_TYPES.index(task.task_type)
    complexities = sigmoid(np.stack(states) @ weights["plan.complexity"] + weights["plan.complexity_bias"])
    assert complexities == pytest.approx(decoded.complexities_BN[0].numpy(), abs=1e-5)
    assert pair_scores(weights, np.stack(states)) == pytest.approx(decoded.pair_logits_BNN[0].numpy(), abs=1e-5)


def test_torch_chooses_as_numpy_does(rows: list[WorkflowExecution], weights: dict[str, np.ndarray]) -> None:
    taken = [decision for row in rows for decision in decisions(row)]
    with torch.no_grad():
        chances = Network(weights).selection_logprobs(choices_of(taken, TASK_TYPES)).exp().numpy()
    selector = NetworkSelector(weights, TASK_TYPES)
    for row, decision in zip(chances, taken, strict=True):
        served = selector.propensities(decision.choice)
        assert row[: len(served)] == pytest.approx(served, abs=1e-5)
        assert not row[len(served) :].any()


def test_logged_log_probabilities_are_those_of_what_was_executed(first: bytes) -> None:
    """The actions that training credits are the executed ones: replayed, they have the probability of the log."""
    rows = play_many(World(2), load_planner(first), 60, 3)
    network = Network(read_file(first).tensors)
    choices = choices_in(rows)
    with torch.no_grad():
        replayed = policy_gradient.chosen_logprobs(network, choices)
    assert replayed.numpy() == pytest.approx(choices.logged_D.numpy(), abs=1e-5)
    taken = [decision for row in rows for decision in decisions(row)]
    assert [decision.choice.workers[decision.chosen].name for decision in taken] == [
        run.worker for row in rows for run in row.runs if run.worker
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_alone_has_a_gradient(name: str, rows: list[WorkflowExecution]) -> None:
    network = Network(fresh_weights(len(TASK_TYPES), 0))
    supervised.losses(network, plans_in(rows), choices_in(rows))[name].backward()
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 1e-6


def test_every_weight_but_the_critics_is_trained_by_phase_1(rows: list[WorkflowExecution]) -> None:
    network = Network(fresh_weights(len(TASK_TYPES), 0))
    supervised.total_loss(supervised.losses(network, plans_in(rows), choices_in(rows)), 0.3).backward()
    without = {name for name, weight in network.weights.items() if weight.grad is None or not weight.grad.any()}
    assert {name for name in without if not name.startswith("critic")} == set()


def test_the_penalty_is_zero_for_a_dag_and_positive_for_a_cycle() -> None:
    chain = torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]])
    cycle = chain + torch.tensor([[[0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    assert float(supervised.acyclicity(chain)) == pytest.approx(0.0, abs=1e-6)
    assert float(supervised.acyclicity(cycle)) > 0.1


def test_a_masked_adjacency_has_no_penalty_to_learn_from(rows: list[WorkflowExecution]) -> None:
    network = Network(fresh_weights(len(TASK_TYPES), 0))
    plans = plans_in(rows)
    pairs = torch.sigmoid(network.decode(plans.texts_BF, plans.types_BN).pair_logits_BNN)
    supervised.acyclicity(torch.tril(pairs, -1)).backward()
    gradient = network.weight("plan.query").grad
    assert gradient is not None
    assert float(gradient.abs().max()) < 1e-6


def test_parts_are_disjoint_and_stay_what_they_are(rows: list[WorkflowExecution]) -> None:
    parts = [part_of(row.workflow_id) for row in play_many(World(1), Teacher(), 500, 1)]
    assert {part: round(parts.count(part) / 500, 1) for part in set(parts)} == pytest.approx(
        {"train": 0.7, "validation": 0.2, "test": 0.1}, abs=0.1
    )
    assert [part_of(row.workflow_id) for row in rows] == parts[: len(rows)]


@pytest.mark.parametrize("algorithm", ["planner_supervised", "planner_ppo", "selector_linucb", "selector_thompson"])
def test_a_log_that_was_learned_from_still_judges_by_its_test_part(
    algorithm: str, rows: list[WorkflowExecution], first: bytes
) -> None:
    trained = getattr(algorithms, algorithm)(rows, first, Hyperparameters(epochs=1), quiet)
    judged = off_policy.judge(rows, load_planner(trained.blob))
    test = [row for row in rows if part_of(row.workflow_id) == TEST]
    assert judged.executions == len(test) > 0
    assert {row.success for row in test} == {True, False}
    assert trained.samples <= len(rows) - len(test)


def test_phase_1_learns_the_plans_of_the_log() -> None:
    few = play_many(World(1), Teacher(), 250, 1)
    reported: list[float] = []
    trained = supervised.train(
        few,
        None,
        Supervised(learning_rate=3e-3, epochs=12),
        0,
        lambda step, total, figures: reported.append(figures["loss"]),
    )
    assert reported[-1] < reported[0]
    assert trained.metrics["test_type_accuracy"] > 0.8


def test_what_phase_1_left_out_by_its_outcome_judges_no_candidate(rows: list[WorkflowExecution], first: bytes) -> None:
    assert {row.success for row in rows} == {True, False}
    learned = [row.workflow_id for row in rows if part_of(row.workflow_id) != TEST]
    assert load_planner(first).trained_on == {execution_digest(name) for name in learned}


def test_phase_1_gives_the_same_planner_for_the_same_seed(rows: list[WorkflowExecution], first: bytes) -> None:
    assert supervised.train(rows, None, Supervised(epochs=2), 0, quiet).blob == first


def test_phase_1_learns_variants_and_is_judged_by_none(rows: list[WorkflowExecution]) -> None:
    bare, varied = (supervised.train(rows, None, Supervised(epochs=1, variants=n), 0, quiet) for n in (0, 1))
    assert varied.blob != bare.blob
    assert varied.samples == bare.samples
    assert load_planner(varied.blob).trained_on == load_planner(bare.blob).trained_on
    learned_nothing = Supervised(epochs=1, variants=1, learning_rate=0.0)
    judged = [supervised.train(rows, None, replace(learned_nothing, variants=n), 0, quiet).metrics for n in (0, 1)]
    assert judged[0] == judged[1]


def test_phase_1_continues_a_planner(rows: list[WorkflowExecution], first: bytes) -> None:
    more = play_many(World(9), Teacher(), 60, 1)
    continued = load_planner(supervised.train(more, first, Supervised(epochs=1), 0, quiet).blob)
    assert continued.trained_on > load_planner(first).trained_on


def test_phase_1_refuses_a_log_of_failures(rows: list[WorkflowExecution]) -> None:
    failed = [msgspec.structs.replace(row, success=False) for row in rows]
    with pytest.raises(DataUnusable, match="0 of 120 executions succeeded"):
        supervised.train(failed, None, Supervised(), 0, quiet)


def served_reward(planner: LearnedPlanner) -> float:
    return float(np.mean([workflow_reward(row) for row in play_many(World(50), planner, 400, 5)]))


@pytest.mark.slow
def test_phase_2_improves_the_reward_from_logs() -> None:
    blob = supervised.train(play_many(World(1), Teacher(), 400, 1), None, Supervised(epochs=30), 0, quiet).blob
    log = play_many(World(2), load_planner(blob), 800, 2)
    options = PolicyGradient(rounds=10)
    improved = policy_gradient.train(log, blob, options, 0, quiet).blob
    assert served_reward(load_planner(improved)) > served_reward(load_planner(blob)) + 0.5


@pytest.mark.parametrize("on_policy", [False, True])
def test_a_round_makes_good_choices_likelier(first: bytes, on_policy: bool) -> None:
    rows = play_many(World(3), load_planner(first), 200, 4)
    network = Network(read_file(first).tensors)
    episodes = policy_gradient.episodes_of(rows, TASK_TYPES)
    options = PolicyGradient()
    policy_gradient.fit_critic(network, episodes, options)
    before = policy_gradient.chosen_logprobs(network, episodes.choices).detach()
    targets = policy_gradient.targets_of(network, episodes, options, on_policy)
    policy_gradient.update(network, episodes, options, on_policy)
    moved = policy_gradient.chosen_logprobs(network, episodes.choices).detach() - before
    good, bad = targets.advantages_D > 0.5, targets.advantages_D < -0.5
    assert float(moved[good].mean()) > 0.005 > -0.005 > float(moved[bad].mean())


def episodes_with(rewards: list[float], last: list[bool]) -> Episodes:
    return Episodes(choices=None, rewards_D=torch.tensor(rewards), last_D=torch.tensor(last))  # type: ignore[arg-type]


def test_gae_runs_along_each_execution_alone() -> None:
    episodes = episodes_with([1.0, 2.0, 5.0], [False, True, True])
    values = torch.tensor([0.5, 1.0, 2.0])
    options = PolicyGradient(gamma=0.9, gae_lambda=0.5)
    second = 2.0 - 1.0
    first = 1.0 + 0.9 * 1.0 - 0.5 + 0.9 * 0.5 * second
    assert policy_gradient.gae(episodes, values, options).tolist() == pytest.approx([first, second, 3.0])


def test_v_trace_on_policy_has_the_targets_of_gae() -> None:
    episodes = episodes_with([1.0, 2.0, 5.0], [False, True, True])
    values = torch.tensor([0.5, 1.0, 2.0])
    options = PolicyGradient()
    _, targets = policy_gradient.v_trace(episodes, values, torch.ones(3), options)
    assert (targets - values).tolist() == pytest.approx(policy_gradient.gae(episodes, values, options).tolist())


def test_v_trace_cuts_what_the_policy_would_not_do() -> None:
    episodes = episodes_with([0.0, 9.0], [False, True])
    values = torch.zeros(2)
    _, targets = policy_gradient.v_trace(episodes, values, torch.tensor([0.0, 1.0]), PolicyGradient())
    assert targets.tolist() == pytest.approx([0.0, 9.0])


def test_weights_of_a_log_are_truncated(first: bytes) -> None:
    rows = play_many(World(3), load_planner(first), 50, 4)
    rare = [msgspec.structs.replace(row, runs=tuple(_rare(run) for run in row.runs)) for row in rows]
    network = Network(read_file(first).tensors)
    targets = policy_gradient.targets_of(
        network, policy_gradient.episodes_of(rare, TASK_TYPES), PolicyGradient(), False
    )
    assert float(targets.weights_D.max()) == policy_gradient.TRUNCATION
    assert not targets.weights_D.requires_grad


def _rare(run: SubTaskRun) -> SubTaskRun:
    return msgspec.structs.replace(run, propensity=0.02) if run.worker else run


def test_phase_2_refuses_a_log_that_is_too_far_away(first: bytes) -> None:
    rows = play_many(World(3), load_planner(first), 50, 4)
    odd = [
        msgspec.structs.replace(row, runs=tuple(_rare(run) if number == 0 else run for run in row.runs))
        for number, row in enumerate(rows)
    ]
    far = [msgspec.structs.replace(row, runs=tuple(_rarest(run) for run in row.runs)) for row in odd[:3]] + odd[3:]
    with pytest.raises(DataUnusable, match="too far off-policy"):
        policy_gradient.train(far, first, PolicyGradient(), 0, quiet)


def _rarest(run: SubTaskRun) -> SubTaskRun:
    return msgspec.structs.replace(run, propensity=1e-4) if run.worker else run


def test_phase_2_needs_a_planner_to_start_from(rows: list[WorkflowExecution]) -> None:
    with pytest.raises(DataUnusable, match="train one first"):
        policy_gradient.train(rows, None, PolicyGradient(), 0, quiet)


def test_phase_2_leaves_plans_as_they_are(first: bytes) -> None:
    rows = play_many(World(3), load_planner(first), 50, 4)
    improved = policy_gradient.train(rows, first, PolicyGradient(rounds=1, epochs=1), 0, quiet).blob
    before, after = read_file(first).tensors, read_file(improved).tensors
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("plan."))
    assert not np.array_equal(before["select.worker"], after["select.worker"])


@pytest.mark.parametrize("kind", ["linucb", "thompson"])
def test_a_bandit_plans_as_the_planner_that_it_continues(
    kind: str, rows: list[WorkflowExecution], first: bytes
) -> None:
    trained = bandits.train(kind, rows, first)
    assert load_planner(trained.blob).plan("Make slides.") == load_planner(first).plan("Make slides.")
    assert trained.samples == len([row for row in rows if part_of(row.workflow_id) != TEST])
    assert math.isfinite(served_reward(load_planner(trained.blob)))


@pytest.mark.parametrize("kind", ["linucb", "thompson"])
def test_a_bandit_needs_a_decision(kind: str) -> None:
    with pytest.raises(DataUnusable):
        bandits.train(kind, [], None)
