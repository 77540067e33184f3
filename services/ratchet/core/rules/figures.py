"""Every figure that a training prints: what it is, and which values are good and bad. The only place that says so.

A test holds that each figure of every algorithm stands here, and nothing else. `bad_below` and `bad_above` mark a
value; where good or bad is a matter of how a curve runs, only the words say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONVERSATIONS_WITHOUT_TOOLS = "conversations_without_tools"
"""The deployer reads it too: a role with such conversations has agents that call tools."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    meaning: str
    """What it is; the sentence goes on with what is good and bad."""
    good: str
    bad: str
    unit: str = ""
    bad_below: float | None = None
    bad_above: float | None = None

    @property
    def sentence(self) -> str:
        """Everything, for a person."""
        return f"{self.meaning}; good: {self.good}; bad: {self.bad}."

    def is_bad(self, value: float) -> bool:
        """Whether a value is known to be bad."""
        return (self.bad_below is not None and value < self.bad_below) or (
            self.bad_above is not None and value > self.bad_above
        )


def _count(meaning: str, good: str, bad: str) -> Figure:
    return Figure(meaning, good, bad)


_EVERY_STEP: Mapping[str, Figure] = {
    "loss": Figure(
        "What training minimises, averaged over the train step",
        "it falls (sft, dpo, kto, reward_model); a policy gradient's hovers around 0",
        "it rises for many train steps",
    ),
    "grad_norm": Figure(
        "Length of the gradient before it is shortened to max_grad_norm",
        "it stays within a factor of ten",
        "it grows a hundredfold: the training is stopped",
    ),
    "learning_rate": Figure("Step size of the optimiser now", "as planned", "never by itself"),
    "tokens_per_second": Figure(
        "Tokens of rows, prompts included, that went through the model in a second",
        "steady, and as high as the device allows",
        "it falls while the training runs",
        "tokens/s",
    ),
    "policy_entropy": Figure(
        "Mean uncertainty of the policy where it wrote a token of the data",
        "it falls slowly",
        "near 0 (it says one thing only), or a rise by more than a nat (it forgets what it could)",
        "nats",
    ),
}

_POLICY_GRADIENT: Mapping[str, Figure] = {
    "reward_mean": Figure(
        "Mean reward of the trajectories that are learnt from; logged before, so it is not the new policy's",
        "between what fails and what succeeds",
        "at either end: there is little to tell apart",
    ),
    "reward_std": Figure("Spread of those rewards", "well above 0", "near 0: there is nothing to tell apart"),
    "ess": Figure(
        "Effective sample size: the share of tokens that still say something about the policy as it is now",
        "above 0.5",
        "below 0.3; below 0.1 the training is stopped",
        bad_below=0.3,
    ),
    "approx_kl": Figure(
        "How far the policy has moved since the job began, per token",
        "below 0.5",
        "above 2: the training is stopped",
        "nats",
        bad_above=2.0,
    ),
    "clip_fraction": Figure(
        "Share of tokens whose ratio to the policy at the start is clipped, so that they learn no further",
        "below 0.2",
        "above 0.5: the learning rate is too high for this data",
        bad_above=0.5,
    ),
    "rejected_mass": Figure(
        "Share of tokens in rows that the engine's log-probabilities do not fit (rejection_window)",
        "below 0.05",
        "above 0.5: the engine and the trainer disagree, or the data is old",
        bad_above=0.5,
    ),
    "start_ess": Figure(
        "Effective sample size before the first train step: how well the data fits the policy that is trained",
        "above 0.8",
        "below 0.3: the data is refused",
        bad_below=0.3,
    ),
    "start_entropy": Figure(
        "Mean uncertainty of the policy before the first train step",
        "above 0.05: there is something to choose between",
        "near 0: every try is the same, and nothing can be learnt from rewards",
        "nats",
    ),
    "reward_shift": Figure(
        "Correlation of what became likelier with its reward",
        "above 0",
        "below 0: the policy unlearns what is rewarded",
        bad_below=-0.5,
    ),
    "independent_shift": Figure(
        "Correlation of what became likelier with the independent metric that the request declares",
        "above 0, as reward_shift is",
        "clearly below 0 while reward_shift is above: the reward is being exploited, and the training is stopped",
    ),
    "groups": _count("Tasks of the data", "many", "few: what is learnt is about these tasks alone"),
    "zero_variance_groups": _count(
        "Tasks whose tries all have the same reward, which teach nothing",
        "below half of the groups",
        "nearly all groups: the tasks are too easy or too hard",
    ),
    "singleton_groups": _count(
        "Tasks with a single try, which is compared with a stored baseline",
        "few, or with a baseline",
        "nearly all groups, and no history to take a baseline from",
    ),
    "forks": _count(
        "Rows more than trajectories: places where an agent rewrote its history",
        "0 for agents that only add messages",
        "as many as calls: nothing is shared, and training is slow",
    ),
    "orphan_calls": _count("Calls whose answer the agent threw away", "few", "a large share of the calls"),
    "untrainable_calls": _count(
        "Calls without usable token ids or log-probabilities", "0", "more than the calls that are learnt from"
    ),
    "unmasked_calls": _count(
        "Constrained calls whose grammar could not be followed", "0", "most of the constrained calls"
    ),
    "unrewarded_trajectories": _count("Trajectories without a reward, which are left out", "0", "a large share"),
    "truncated_rows": _count("Rows that were cut at max_length", "0", "many: ends of trajectories are not learnt"),
    "explained_variance": Figure(
        "Share of the rewards' variance that PPO's critic explains, on tasks that its fit has not seen",
        "above baseline_explained_variance",
        "below 0: the critic is worse than the mean reward",
        bad_below=0.0,
    ),
    "baseline_explained_variance": Figure(
        "The same share of the tasks' baselines alone",
        "above 0",
        "below 0: tries at one task have little in common",
    ),
}

_CHATS: Mapping[str, Figure] = {
    "rows": _count("Sequences that are learnt from", "as many as conversations, or more", "far fewer than the data"),
    "split_conversations": _count(
        "Conversations that became several rows, because the template renders history differently",
        "0",
        "most: training is slower by as much",
    ),
    "unrenderable_conversations": _count("Conversations that the template refuses", "0", "a large share of the data"),
    "truncated_tokens": _count("Tokens that would have learnt, beyond max_length", "0", "a large share of them"),
    "answers_without_end": _count(
        "Answers whose end the template does not mark, so that ending is not learnt", "0", "all: the policy talks on"
    ),
    "empty_thoughts": _count(
        "Answers without reasoning where the template renders an empty thought, which is not learnt",
        "0",
        "all of a policy that is to reason",
    ),
    "dropped_thoughts": _count("Answers whose reasoning the template leaves out", "0", "all of a model that thinks"),
    "dropped_texts": _count("Answers whose text the template leaves out", "0", "any: that is not learnt"),
    CONVERSATIONS_WITHOUT_TOOLS: _count(
        "Conversations whose tools the template does not show", "0", "any of an agent that calls tools"
    ),
    "trained_tokens": _count("Tokens that learn", "most of what the policy wrote", "few: little is learnt"),
}

_PREFERENCES: Mapping[str, Figure] = {
    "kl_divergence": Figure(
        "Distance from the reference, the policy without what was learnt, per token (kto: per answer)",
        "it rises slowly",
        "it jumps, or exceeds some nats per token",
        "nats",
    ),
    "accuracy": Figure(
        "Share of the train step's examples that it gets right (pairs in the right order, answers on the right side)",
        "it rises above 0.5",
        "it stays at 0.5, or reaches 1 at once: the answers differ in something trivial",
    ),
    "auc": Figure(
        "The chance that an answer that should rank higher scores above one that should rank lower, over a train step",
        "it rises above 0.5",
        "it stays at 0.5",
    ),
    "margin": Figure(
        "How much higher a chosen answer scores than a rejected one", "it rises", "it stays at 0 or falls below"
    ),
    "rewards_chosen": Figure(
        "Score of chosen answers: beta times the log-ratio to the reference, or a reward model's",
        "it rises, or falls less than rewards_rejected",
        "it falls for long: good answers become unlikely too",
    ),
    "rewards_rejected": Figure("The same of rejected answers", "it falls", "it rises as fast as rewards_chosen"),
    "pairs": _count("Pairs that are learnt from", "hundreds", "below 50: little can be shown"),
    "equal_pairs": _count("Pairs left out because both answers are the same", "0", "a large share"),
    "unusable_pairs": _count("Pairs left out because an answer cannot be learnt from", "0", "a large share"),
    "held_out_pairs": _count("Pairs kept apart to measure on", "50 or more", "below 20: the interval says nothing"),
    "liked": _count("Answers with thumbs up that are learnt from", "about as many as disliked", "nearly none"),
    "disliked": _count("Answers with thumbs down that are learnt from", "about as many as liked", "nearly none"),
    "held_out_labels": _count("Labelled answers kept apart to measure on", "100 or more", "below 40: little is shown"),
    "unusable_labels": _count("Labelled answers that cannot be learnt from", "0", "a large share"),
}

_EVALUATION: Mapping[str, Figure] = {
    "holdout_pairs": _count("Held-out pairs that were measured on", "50 or more", "below 20"),
    "holdout_accuracy_before": Figure(
        "Share of held-out pairs whose chosen answer was the likelier one before", "any", "none: it is the start"
    ),
    "holdout_accuracy": Figure(
        "Share of held-out pairs in the right order after the training: the chosen answer is the likelier one, or has "
        "the higher reward",
        "above holdout_accuracy_before, and above holdout_length_accuracy",
        "below one of them",
    ),
    "holdout_accuracy_low": Figure("Lower end of its 95 % interval", "above 0.5", "below 0.5: chance is not excluded"),
    "holdout_accuracy_high": Figure(
        "Upper end of it", "above 0.5", "below 0.5: the order is learnt the wrong way round", bad_below=0.5
    ),
    "holdout_length_accuracy": Figure(
        "The same by a rule of thumb: the longer answer is better, or the shorter one, as in the pairs learnt from",
        "well below holdout_accuracy",
        "at or above holdout_accuracy: what was learnt may be the length",
    ),
    "holdout_auc": Figure(
        "The chance that a good held-out answer scores above a bad one",
        "above 0.6, with holdout_auc_low above 0.5",
        "at 0.5 or below",
        bad_below=0.5,
    ),
    "holdout_auc_low": Figure("Lower end of its 95 % interval", "above 0.5", "below 0.5: chance is not excluded"),
    "holdout_auc_high": Figure(
        "Upper end of it", "above 0.5", "below 0.5: the order is learnt the wrong way round", bad_below=0.5
    ),
    "holdout_liked": _count("Held-out answers with thumbs up", "50 or more", "below 20"),
    "holdout_disliked": _count("Held-out answers with thumbs down", "50 or more", "below 20"),
    "holdout_rewards_chosen": Figure(
        "Mean implicit reward of held-out answers with thumbs up", "above holdout_rewards_rejected", "below it"
    ),
    "holdout_rewards_rejected": Figure(
        "The same of those with thumbs down", "below holdout_rewards_chosen", "above it"
    ),
    "holdout_kl": Figure(
        "Distance from the reference on held-out prompts, estimated by mismatched answers, not below 0",
        "as large as kl_divergence, and small",
        "many nats: the policy has left its reference",
        "nats",
    ),
    "holdout_loss": Figure(
        "Loss on what is held out", "near train_loss, and falling", "it rises while the loss of train steps falls"
    ),
    "train_loss": Figure(
        "Loss after the training on pairs that it learnt from, at most 256 of them",
        "near holdout_loss",
        "near 0 while holdout_loss is not: they are remembered",
    ),
    "train_accuracy": Figure(
        "Share of these pairs in the right order", "near holdout_accuracy", "1 while holdout_accuracy is near 0.5"
    ),
    "train_accuracy_low": Figure("Lower end of its 95 % interval", "above 0.5", "below 0.5: nothing was learnt"),
    "train_accuracy_high": Figure(
        "Upper end of it", "above 0.5", "below 0.5: not even these are learnt", bad_below=0.5
    ),
    "train_auc": Figure("AUC on these pairs", "near holdout_auc", "1 while holdout_auc is near 0.5"),
    "train_auc_low": Figure("Lower end of its 95 % interval", "above 0.5", "below 0.5: nothing was learnt"),
    "train_auc_high": Figure("Upper end of it", "above 0.5", "below 0.5: not even these are learnt", bad_below=0.5),
    "train_margin": Figure("Mean margin on these pairs", "near holdout_margin", "far above holdout_margin"),
    "holdout_win_rate": Figure(
        "Share of held-out pairs on which the policy prefers the chosen answer more than its reference does",
        "above 0.5, with holdout_win_rate_low above 0.5 too",
        "below 0.5",
        bad_below=0.5,
    ),
    "holdout_win_rate_low": Figure(
        "Lower end of the 95 % interval of the win rate", "above 0.5", "below 0.5: chance is not excluded"
    ),
    "holdout_win_rate_high": Figure(
        "Upper end of that interval", "above 0.5", "below 0.5: the policy got worse", bad_below=0.5
    ),
    "holdout_margin": Figure(
        "Mean gain of the chosen over the rejected answer on held-out pairs", "above 0", "below 0", bad_below=0.0
    ),
    "improvement_over_baseline": Figure(
        "Held-out accuracy after less that before (dpo); less the rule of thumb's (reward_model); AUC less 0.5 (kto)",
        "above 0",
        "below 0",
        bad_below=0.0,
    ),
    "improvement_low": Figure(
        "Lower end of the 95 % interval of improvement_over_baseline", "above 0", "below 0: chance is not excluded"
    ),
    "improvement_high": Figure("Upper end of it", "above 0", "below 0: the baseline is better", bad_below=0.0),
}

_RESOURCES: Mapping[str, Figure] = {
    "gpu_hours": Figure("Time on GPUs, of all attempts", "as planned", "more than the result is worth", "h"),
    "cost_usd": Figure(
        "Time of all attempts at the prices of their workers", "as planned", "more than it is worth", "USD"
    ),
    "peak_memory_gb": Figure("Most memory in use", "below what the device has", "near it: the next job may fail", "GB"),
    "total_training_time_seconds": Figure("Time of all attempts", "as planned", "much longer than the last job", "s"),
}

FIGURES: Mapping[str, Figure] = {
    **_EVERY_STEP,
    **_POLICY_GRADIENT,
    **_CHATS,
    **_PREFERENCES,
    **_EVALUATION,
    **_RESOURCES,
}
"""By the name that it has in statuses, `metrics.jsonl`, manifests and cards."""
