"""The limits of few real pairs: `python -m tests.bench.bench_preferences FILE [--folds 5] [--epochs 3] [--rate 0.003]`.

FILE has trajectories in tau-bench's format. Pairs are derived as `ratchet preferences derive` does, then learnt with
`dpo` by a tiny random Llama, fold by fold: no task is in both parts. Every pair is held out once, so the counts of all
folds together are one sample, and their interval is that of a proportion. A model that knows no language can only pick
up the surface of what wins; a null result says nothing about a real base, overfitting does.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ratchet.bus.message import JsonObject
from ratchet.contract.snapshot import PairRow
from ratchet.contract.training import Hyperparameters
from ratchet.importers.base import ImportOptions
from ratchet.importers.importing import read_records
from ratchet.importers.tau_bench import trajectory_of
from ratchet.preferences.derivation import derive_pairs
from ratchet.preferences.rules.base import Try
from ratchet.preferences.rules.reward_margin import RewardMargin
from ratchet.rules.recorded import recorded_chat
from ratchet.trainer_worker.training.algorithms.dpo import evaluate, train
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import RowPair, pair_rows, wilson
from ratchet.trainer_worker.training.learner.preferences import score_all
from ratchet.trainer_worker.training.policy import load_policy
from tests.support.snapshot_rows import pair_row
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.trainer_runs import RecordingRun, job_spec

ROLE, MAX_LENGTH, BETA = "airline", 4096, 0.1


def real_pairs(file: Path) -> list[PairRow]:
    """As a snapshot of the imported file would have them."""
    tries: list[Try] = []
    for record in read_records(file):
        one = trajectory_of(record, ImportOptions(role=ROLE))
        outcome = one.outcome
        success = None if outcome is None else {"success": True, "failure": False}.get(outcome.status)
        chat = recorded_chat(one, [])
        group = one.task_context.group_key
        tries.append(Try(one.trajectory_id, ROLE, str(group), chat, success=success, group_key=group))
    derivation = derive_pairs(tries, RewardMargin())
    skipped = dict(derivation.skipped)
    say(f"{len(tries)} tries of {derivation.tasks} tasks: {len(derivation.pairs)} pairs, others {skipped}")
    preferences = [pair.preference() for pair in derivation.pairs]
    return [
        pair_row(
            preference_id=one.preference_id,
            prompt=messages_of(one.prompt),
            chosen=messages_of(one.chosen),
            rejected=messages_of(one.rejected),
            group_key=one.group_key,
        )
        for one in preferences
    ]


def messages_of(value: str | list[JsonObject]) -> list[JsonObject]:
    assert not isinstance(value, str)
    return value


def folds_of(pairs: Sequence[PairRow], count: int) -> list[list[int]]:
    """Indices by fold: whole tasks, the largest first into the smallest fold."""
    tasks: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        tasks.setdefault(str(pair.group_key), []).append(index)
    folds: list[list[int]] = [[] for _ in range(count)]
    order = sorted(tasks.items(), key=lambda task: (-len(task[1]), hashlib.sha256(task[0].encode()).hexdigest()))
    for _, members in order:
        min(folds, key=len).extend(members)
    return folds


def held_out(pairs: Sequence[PairRow], fold: Sequence[int], base: Path, options: argparse.Namespace) -> list[float]:
    """Train on the other folds; (pairs, wins, right before, right after, margin in training, accuracy there)."""
    hyper = Hyperparameters(
        learning_rate=options.rate, batch_size=8, epochs=options.epochs, beta=BETA, full_finetune=True, seed=1
    )
    spec = job_spec("dpo", base=str(base), hyper=hyper)
    torch.manual_seed(1)
    policy = load_policy(spec)
    learn = [pair for index, pair in enumerate(pairs) if index not in fold]
    held: list[RowPair] = pair_rows(ChatRows(policy.tokenizer, MAX_LENGTH), [pairs[index] for index in fold]).pairs
    scorer = Scorer(policy.model)
    before = score_all(scorer, [side for pair in held for side in (pair.chosen, pair.rejected)])
    with tempfile.TemporaryDirectory() as folder:
        run = RecordingRun(Path(folder), "dpo")
        train(spec, policy, learn, run)
    evaluation = evaluate(scorer, held, (before[0::2].clone(), before[1::2].clone()), BETA)
    assert evaluation is not None
    scores = evaluation.benchmark_scores or {}
    last = run.steps[-1].metrics
    names = ("holdout_win_rate", "holdout_accuracy_before", "holdout_accuracy")
    return [len(held), *(scores[name] * len(held) for name in names), last["margin"], last["accuracy"]]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(name: str, right: float, count: float) -> None:
    low, high = wilson(right, int(count))
    say(f"{name}: {right:g} of {count:g} = {right / count:.2f}, 95 % interval {low:.2f} to {high:.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    pairs = real_pairs(options.file)
    shorter = sum(len(pair.chosen) < len(pair.rejected) for pair in pairs)
    shorter_or_tie = shorter + 0.5 * sum(len(pair.chosen) == len(pair.rejected) for pair in pairs)
    report("rule of thumb, fewer messages win", shorter_or_tie, len(pairs))
    with tempfile.TemporaryDirectory() as folder:
        texts = chat_texts([*pair.prompt, *side] for pair in pairs for side in (pair.chosen, pair.rejected))
        base = write_tiny_model(Path(folder) / "base", texts, vocabulary=600)
        folds = []
        for fold in folds_of(pairs, options.folds):
            folds.append(held_out(pairs, fold, base, options))
            say(f"fold of {folds[-1][0]}: {[round(value, 3) for value in folds[-1]]}")
    count, wins, before, after, margin, accuracy = (sum(column) for column in zip(*folds, strict=True))
    report("held-out win rate against the reference", wins, count)
    report("held-out accuracy before", before, count)
    report("held-out accuracy after", after, count)
    means = f"margin {margin / len(folds):.2f}, accuracy {accuracy / len(folds):.2f}"
    say(f"last train step, mean of the folds: {means}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
