"""The limits of few real pairs: `python -m tests.bench.bench_preferences FILE`.

FILE has trajectories in tau-bench's format. Pairs are derived as `ratchet preferences derive` does, then learnt with
`dpo` and `reward_model` by a tiny random Llama, fold by fold: no task is in both parts, every pair is held out once. A
cell, an algorithm with one seed, is added to docs/learning/pairs.json when it ends; what is there is not measured
again. At the end docs/learning.md is drawn anew. A model that knows no language can only pick up the surface of what
wins; a null result says nothing about a real base, overfitting does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from ratchet.bus.message import JsonObject
from ratchet.core.contract.local_training import LoopOptions
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.preferences.derivation import derive_pairs
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.rules.reward_margin import RewardMargin
from ratchet.core.rules.recorded import recorded_chat
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.reading import Records
from ratchet.extras.importers.tau_bench import trajectory_of
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import RowPair, pair_rows
from ratchet.trainer_worker.training.learner.preferences import score_all
from ratchet.trainer_worker.training.learner.ranking import auc
from ratchet.trainer_worker.training.learner.rewards import read_pair, reward_all
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy
from tests.support.snapshot_rows import pair_row
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.trainer_runs import RecordingRun, job_spec
from tools.learning.pairs import (
    DPO,
    REWARD_MODEL,
    SEEDS,
    Baselines,
    Cell,
    Fold,
    HeldOutPair,
    Pairs,
    Rule,
    read_pairs,
    write_pairs,
)
from tools.learning.report import PAIRS, write_report

ROLE, BETA = "airline", 0.1
LENGTH, WHOLE = 1024, 16_384
"""A conversation that is learnt from keeps its last tokens; the rules of thumb see all of them."""
FOLDS, EPOCHS, BATCH = 5, 3, 8
RATES = {DPO: 3e-3, REWARD_MODEL: 3e-4}
"""Of dpo; of a reward model as its test has it. Nothing is tuned on these pairs."""
SOURCE = "120 tries of GPT-4o at 30 tasks of tau-bench's airline"


def real_pairs(file: Path) -> list[PairRow]:
    """As a snapshot of the imported file would have them."""
    tries: list[Try] = []
    for record in (read.value for read in Records(file)):
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
            preference_id=preference.preference_id,
            prompt=messages_of(preference.prompt),
            chosen=messages_of(preference.chosen),
            rejected=messages_of(preference.rejected),
            group_key=preference.group_key,
        )
        for preference in preferences
    ]


def messages_of(value: str | list[JsonObject]) -> list[JsonObject]:
    assert not isinstance(value, str)
    return value


def task_of(pair: PairRow) -> str:
    return str(pair.group_key).rsplit(":", 1)[-1]


def folds_of(pairs: Sequence[PairRow], seed: int) -> list[list[int]]:
    """Indices by fold: whole tasks in an order drawn from the seed, the largest first into the smallest fold."""
    tasks: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        tasks.setdefault(str(pair.group_key), []).append(index)
    order = sorted(tasks)
    random.Random(seed).shuffle(order)
    folds: list[list[int]] = [[] for _ in range(FOLDS)]
    for task in sorted(order, key=lambda task: -len(tasks[task])):
        min(folds, key=len).extend(tasks[task])
    return folds


def measured(algorithm: str, pairs: Sequence[PairRow], fold: Sequence[int], base: Path, seed: int) -> Fold:
    """Train on the other folds, judge this one."""
    hyper = Hyperparameters(
        learning_rate=RATES[algorithm],
        batch_size=BATCH,
        epochs=EPOCHS,
        beta=BETA if algorithm == DPO else None,
        full_finetune=True,
        max_length=LENGTH,
        seed=seed,
    )
    spec = job_spec(algorithm, base=str(base), hyper=hyper, loop=LoopOptions(keep_end=True))
    torch.manual_seed(seed)
    policy = load_policy(spec)
    held = pair_rows(ChatRows(policy.tokenizer, LENGTH, keep_end=True), [pairs[index] for index in fold]).pairs
    assert len(held) == len(fold)
    before = None if algorithm == REWARD_MODEL else margins(policy, held)[0]
    with tempfile.TemporaryDirectory() as folder:
        run = RecordingRun(Path(folder), algorithm)
        load_train(algorithm)(spec, policy, [one for index, one in enumerate(pairs) if index not in fold], run)
    after, area = rewards(policy, held) if algorithm == REWARD_MODEL else margins(policy, held)
    judged = [
        HeldOutPair(task_of(pairs[index]), round(after[place], 4), None if before is None else round(before[place], 4))
        for place, index in enumerate(fold)
    ]
    return Fold(judged, run.steps[-1].metrics["accuracy"], area)


def margins(policy: TrainedPolicy, held: Sequence[RowPair]) -> tuple[list[float], None]:
    """Log-probability of the chosen side less that of the rejected one."""
    scores = score_all(Scorer(policy.model), [side for pair in held for side in pair.sides])
    return (scores[0::2] - scores[1::2]).tolist(), None


def rewards(policy: TrainedPolicy, held: Sequence[RowPair]) -> tuple[list[float], float]:
    """Reward of the chosen side less that of the rejected one, and the AUC."""
    chosen, rejected = reward_all(Scorer(policy.model), [read_pair(pair, policy.pad) for pair in held])
    return (chosen - rejected).tolist(), auc(chosen.tolist(), rejected.tolist())


def rules_of(pairs: Sequence[PairRow], base: Path) -> Baselines:
    """Length alone: in one direction, and in the direction that the other tasks show."""
    policy = load_policy(job_spec(DPO, base=str(base), hyper=Hyperparameters(full_finetune=True)))
    made = pair_rows(ChatRows(policy.tokenizer, WHOLE), pairs).pairs
    longer = [float(sum(r.trained for r in one.chosen) - sum(r.trained for r in one.rejected)) for one in made]
    tasks = [task_of(pair) for pair in pairs]

    def right(margin: float) -> float:
        return 0.5 if margin == 0 else float(margin > 0)

    def learnt(task: str, margin: float) -> float:
        others = [right(other) for name, other in zip(tasks, longer, strict=True) if name != task]
        return right(margin if sum(others) >= len(others) / 2 else -margin)

    both = list(zip(tasks, longer, strict=True))
    messages = [(task_of(pair), right(float(len(pair.rejected) - len(pair.chosen)))) for pair in pairs]
    return Baselines(
        SOURCE,
        [
            Rule("the longer answer wins", [(task, right(margin)) for task, margin in both]),
            Rule("longer, as learnt", [(task, learnt(task, margin)) for task, margin in both]),
            Rule("fewer messages win", messages),
        ],
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    pairs = real_pairs(options.file)
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            texts = chat_texts([*pair.prompt, *side] for pair in pairs for side in (pair.chosen, pair.rejected))
            base = write_tiny_model(Path(folder) / "base", texts, vocabulary=600, seed=seed)
            known = read_pairs(PAIRS)
            if known.baselines is None:
                write_pairs(PAIRS, Pairs(rules_of(pairs, base), known.cells))
            for algorithm in (DPO, REWARD_MODEL):
                if (algorithm, seed) not in {(cell.algorithm, cell.seed) for cell in known.cells}:
                    add_cell(measured_cell(algorithm, seed, pairs, base))
    write_report()
    return 0


def add_cell(cell: Cell) -> None:
    known = read_pairs(PAIRS)
    cells = sorted([*known.cells, cell], key=lambda measured: (measured.algorithm, measured.seed))
    write_pairs(PAIRS, Pairs(known.baselines, cells))
    say(f"{cell.algorithm}, seed {cell.seed}: {cell.seconds} s")


def measured_cell(algorithm: str, seed: int, pairs: Sequence[PairRow], base: Path) -> Cell:
    began = time.monotonic()
    folds = [measured(algorithm, pairs, fold, base, seed) for fold in folds_of(pairs, seed)]
    recipe = {
        "tokens of a row": LENGTH,
        "folds": FOLDS,
        "epochs": EPOCHS,
        "batch": BATCH,
        "hidden size": 32,
        "layers": 2,
        "vocabulary": 600,
    }
    versions = {name: version(name) for name in ("torch", "transformers", "trl")}
    seconds = round(time.monotonic() - began, 1)
    return Cell(algorithm=algorithm, seed=seed, recipe=recipe, versions=versions, seconds=seconds, folds=folds)


if __name__ == "__main__":
    sys.exit(main())
