"""Phase 2, `planner_ppo`: improves the choice of workers by the rewards of executions; plans stay as they are.

PPO (arXiv:1707.06347) over the sub-tasks of a workflow, in order. Logs have three policies: mu, which chose (its logged
propensity, floor included); prox, where a round begins; pi, which is trained. The objective is min(r A, clip(r) A) with
r = pi / prox, times prox / mu truncated at 2 and detached; advantages come from V-trace (arXiv:1802.01561). On-policy,
where prox is mu, they come from GAE (arXiv:1506.02438). pi has the floor, as it is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.planning.files import NETWORK, Description, PlannerFile, load_planner, read_file, save_planner
from ratchet.core.planning.learned import LearnedPlanner, execution_digest
from ratchet.core.planning.logged import decisions, learnable
from ratchet.core.planning.rewards import step_rewards
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.planning.base import Report, Trained
from ratchet.trainer_worker.training.planning.batches import choices_of
from ratchet.trainer_worker.training.planning.network import Choices, Network
from ratchet.trainer_worker.training.planning.supervised import starting_weights

REWARD_UNIT = 10.0
"""Rewards in this unit: values near 1 are what a critic of this size learns well."""
TRUNCATION = 2.0
"""Most that prox / mu counts for."""
LEAST_ESS = 0.3
"""Effective sample size, as a share, below which a log says nothing more about the policy."""
CRITIC_STEPS = 200
CRITIC_RATE = 3e-3
"""Of the critic alone, before the first round: the advantages of a critic that knows nothing are the rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """Hyperparameters."""

    learning_rate: float = 1e-3
    """Larger networks have 3e-5, by which this small one gains a sixth of the reward in so many rounds: see
    `docs/planning.md`."""
    rounds: int = 40
    """Times that prox becomes the trained policy; from logs it ends earlier where the effective sample size is low."""
    epochs: int = 4
    """Passes over the decisions in a round."""
    batch_size: int = 256
    clip: float = 0.2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Episodes:
    """Executions as decisions; those of an execution stand together, in order."""

    choices: Choices
    rewards_D: Tensor
    last_D: Tensor
    """Whether a decision is its execution's last one."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What a round learns."""

    proximal_D: Tensor
    """Log-probabilities."""
    weights_D: Tensor
    """prox / mu, truncated."""
    advantages_D: Tensor
    returns_D: Tensor


def train(
    rows: Sequence[WorkflowExecution], start: bytes | None, options: PolicyGradient, seed: int, report: Report
) -> Trained:
    """Improves the selector of the planner in `start` from logged executions.

    Raises `DataUnusable` without a planner of the kind `network` to start from, without decisions, and where the log is
    too far from the policy at the beginning.
    """
    torch.manual_seed(seed)
    earlier = _network_file(start)
    types = earlier.description.task_types
    network = Network(starting_weights(earlier, len(types), seed))
    used = learnable(rows)
    if not used:
        raise DataUnusable(f"none of {len(rows)} executions has a decision: no worker was asked, or none was logged")
    episodes = episodes_of(used, types)
    fit_critic(network, episodes, options)
    figures: dict[str, float] = {}
    for number in range(1, options.rounds + 1):
        ess = sample_size(network, episodes.choices)
        if ess < LEAST_ESS and number == 1:
            raise DataUnusable(f"the log is too far off-policy: effective sample size {ess:.2f}, {LEAST_ESS} is needed")
        if ess < LEAST_ESS:
            break
        figures = update(network, episodes, options, on_policy=False) | {"ess": ess, "rounds": float(number)}
        report(number, options.rounds, figures)
    return Trained(_file(network, earlier, used), len(used), figures)


def train_on_policy(
    play: Callable[[LearnedPlanner], Sequence[WorkflowExecution]],
    start: bytes | None,
    options: PolicyGradient,
    seed: int,
    report: Report,
) -> Trained:
    """Improves it by executions that each round plays anew with the policy as it is then."""
    torch.manual_seed(seed)
    earlier = _network_file(start)
    types = earlier.description.task_types
    network = Network(starting_weights(earlier, len(types), seed))
    played: list[WorkflowExecution] = []
    figures: dict[str, float] = {}
    for number in range(1, options.rounds + 1):
        rows = [row for row in play(load_planner(_file(network, earlier, played))) if any(decisions(row))]
        episodes = episodes_of(rows, types)
        if number == 1:
            fit_critic(network, episodes, options)
        figures = update(network, episodes, options, on_policy=True)
        played += rows
        report(number, options.rounds, figures)
    return Trained(_file(network, earlier, played), len(played), figures)


def _network_file(start: bytes | None) -> PlannerFile:
    file = read_file(start) if start else None
    if file is None or file.description.selector != NETWORK:
        raise DataUnusable("planner_ppo continues a planner that planner_supervised trained: train one first")
    return file


def _file(network: Network, earlier: PlannerFile, rows: Sequence[WorkflowExecution]) -> bytes:
    trained_on = {execution_digest(row.workflow_id) for row in rows} | set(earlier.description.trained_on)
    types = earlier.description.task_types
    description = Description(selector=NETWORK, task_types=types, trained_on=tuple(sorted(trained_on)))
    return save_planner(PlannerFile(description, network.arrays()))


def episodes_of(rows: Sequence[WorkflowExecution], task_types: Sequence[str]) -> Episodes:
    """Each of `rows` has a decision."""
    taken = [list(decisions(row)) for row in rows]
    rewards = [
        step_rewards([decision.run for decision in made], row.success) for row, made in zip(rows, taken, strict=True)
    ]
    return Episodes(
        choices=choices_of([decision for made in taken for decision in made], task_types),
        rewards_D=torch.tensor([reward / REWARD_UNIT for steps in rewards for reward in steps]),
        last_D=torch.tensor([index == len(made) - 1 for made in taken for index in range(len(made))]),
    )


def update(network: Network, episodes: Episodes, options: PolicyGradient, on_policy: bool) -> dict[str, float]:
    """One round, beginning where the network is."""
    targets = targets_of(network, episodes, options, on_policy)
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=0.0)
    sums: dict[str, float] = {}
    steps = 0
    for _ in range(options.epochs):
        for places in torch.randperm(len(episodes.choices)).split(options.batch_size):
            parts = loss_parts(network, episodes.choices.at(places), _at(targets, places), options)
            optimizer.zero_grad()
            parts["loss"].backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), options.max_grad_norm)
            optimizer.step()
            steps += 1
            for name, part in parts.items():
                sums[name] = sums.get(name, 0.0) + float(part.detach())
    return {name: total / steps for name, total in sums.items()}


def loss_parts(network: Network, choices: Choices, targets: Targets, options: PolicyGradient) -> dict[str, Tensor]:
    """The loss of a batch and its parts."""
    logprobs_DW = network.selection_logprobs(choices)
    ratios_D = (logprobs_DW.gather(1, choices.chosen_D[:, None])[:, 0] - targets.proximal_D).exp()
    clipped_D = ratios_D.clamp(1 - options.clip, 1 + options.clip)
    gains_D = torch.minimum(ratios_D * targets.advantages_D, clipped_D * targets.advantages_D)
    entropy = -(logprobs_DW.exp() * logprobs_DW.masked_fill(~choices.capable_DW, 0.0)).sum(dim=-1).mean()
    policy = -(targets.weights_D * gains_D).mean()
    value = ((network.values(choices) - targets.returns_D) ** 2).mean()
    loss = policy + options.value_coefficient * value - options.entropy_coefficient * entropy
    return {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy}


@torch.no_grad()
def targets_of(network: Network, episodes: Episodes, options: PolicyGradient, on_policy: bool) -> Targets:
    """Advantages in units of their own standard deviation."""
    choices = episodes.choices
    proximal_D = chosen_logprobs(network, choices)
    values_D = network.values(choices)
    ratios_D = torch.ones_like(values_D) if on_policy else (proximal_D - choices.logged_D).exp()
    if on_policy:
        advantages_D = gae(episodes, values_D, options)
        returns_D = advantages_D + values_D
    else:
        advantages_D, returns_D = v_trace(episodes, values_D, ratios_D, options)
    scale = float(advantages_D.std()) if len(advantages_D) > 1 else 1.0
    return Targets(
        proximal_D=proximal_D,
        weights_D=ratios_D.clamp(max=TRUNCATION),
        advantages_D=(advantages_D - advantages_D.mean()) / max(scale, 1e-6),
        returns_D=returns_D,
    )


def gae(episodes: Episodes, values_D: Tensor, options: PolicyGradient) -> Tensor:
    """[D]: advantages by generalised estimation, along each execution."""
    steps = zip(episodes.rewards_D.tolist(), values_D.tolist(), episodes.last_D.tolist(), strict=True)
    advantages: list[float] = []
    after, value_after = 0.0, 0.0
    for reward, value, last in reversed(list(steps)):
        if last:
            after, value_after = 0.0, 0.0
        after = reward + options.gamma * value_after - value + options.gamma * options.gae_lambda * after
        value_after = value
        advantages.append(after)
    return torch.tensor(advantages[::-1])


def v_trace(episodes: Episodes, values_D: Tensor, ratios_D: Tensor, options: PolicyGradient) -> tuple[Tensor, Tensor]:
    """[D] advantages, without the weight of their own decision, which the loss has; and [D] targets of the values."""
    steps = zip(
        episodes.rewards_D.tolist(), values_D.tolist(), ratios_D.tolist(), episodes.last_D.tolist(), strict=True
    )
    advantages: list[float] = []
    targets: list[float] = []
    target_after, value_after = 0.0, 0.0
    for reward, value, ratio, last in reversed(list(steps)):
        if last:
            target_after, value_after = 0.0, 0.0
        trace = options.gae_lambda * min(1.0, ratio)
        surprise = min(TRUNCATION, ratio) * (reward + options.gamma * value_after - value)
        target = value + surprise + options.gamma * trace * (target_after - value_after)
        advantages.append(reward + options.gamma * target_after - value)
        targets.append(target)
        target_after, value_after = target, value
    return torch.tensor(advantages[::-1]), torch.tensor(targets[::-1])


def fit_critic(network: Network, episodes: Episodes, options: PolicyGradient) -> None:
    """Regression on what each execution went on to earn."""
    returns_D = gae(episodes, torch.zeros(len(episodes.choices)), PolicyGradient(gamma=options.gamma, gae_lambda=1.0))
    critic = [network.weight(name) for name in ("critic.text", "critic.type", "critic.place", "critic.bias")]
    critic += [network.weight("critic.out"), network.weight("critic.out_bias")]
    optimizer = torch.optim.AdamW(critic, lr=CRITIC_RATE)
    for _ in range(CRITIC_STEPS):
        places = torch.randint(len(returns_D), (min(256, len(returns_D)),))
        loss = ((network.values(episodes.choices.at(places)) - returns_D[places]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def chosen_logprobs(network: Network, choices: Choices) -> Tensor:
    """[D]: of what was executed, as the network has it now."""
    return network.selection_logprobs(choices).gather(1, choices.chosen_D[:, None])[:, 0]


@torch.no_grad()
def sample_size(network: Network, choices: Choices) -> float:
    """(sum w)^2 / (D sum w^2) of w = prox / mu (Kish 1965)."""
    weights_D = (chosen_logprobs(network, choices) - choices.logged_D).exp()
    return float(weights_D.sum() ** 2 / (len(weights_D) * (weights_D**2).sum()))


def _at(targets: Targets, places: Tensor) -> Targets:
    return Targets(*(getattr(targets, name)[places] for name in targets.__slots__))
