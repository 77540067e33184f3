"""Preference pairs as rows, which of them are held out, and what a held-out count can show.

Only what the assistant says after a pair's prompt learns. What shares a prompt or a group is never separated.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from torch import Tensor

from ratchet.core.chat_templates.conversations import CHOSEN, REJECTED, conversations_of
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import EvaluationResults
from ratchet.core.rules.intervals import paired_difference
from ratchet.core.rules.training_options import split_problem
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.learner.rows import Row


class HasKeys(Protocol):
    """Pairs of either kind."""

    @property
    def keys(self) -> tuple[str, ...]:
        """See `hold_out_keys`; pairs that share one belong together."""
        ...


@dataclass(frozen=True, slots=True)
class RowPair:
    """Both answers to one prompt."""

    chosen: list[Row]
    rejected: list[Row]
    keys: tuple[str, ...]
    """See `hold_out_keys`; pairs that share one are never on both sides of a hold-out."""

    @property
    def sides(self) -> tuple[list[Row], list[Row]]:
        """The chosen one first."""
        return self.chosen, self.rejected


@dataclass(frozen=True, slots=True)
class PairRows:
    """What the pairs of a snapshot became."""

    pairs: list[RowPair]
    equal: int
    """Left out: both sides are the same tokens."""
    unusable: int
    """Left out: one side has nothing to learn, or nothing within the longest row."""

    def counts(self, learn: Sequence[int], held: Sequence[int]) -> dict[str, float]:
        """As a job reports them."""
        return {
            "pairs": len(learn),
            "held_out_pairs": len(held),
            "equal_pairs": self.equal,
            "unusable_pairs": self.unusable,
        }


def pair_rows(chats: ChatRows, pairs: Sequence[PairRow]) -> PairRows:
    """Rows of every usable pair, in order; no two have one id. Raises `DataUnusable` when there is none."""
    rows = rows_by_key(chats.rows(conversation for pair in pairs for conversation in conversations_of(pair)))
    usable: list[RowPair] = []
    equal = 0
    for pair in pairs:
        chosen, rejected = (rows.get(f"{pair.preference_id}{side}") for side in (CHOSEN, REJECTED))
        if chosen is None or rejected is None:
            continue
        if [row.token_ids.tolist() for row in chosen] == [row.token_ids.tolist() for row in rejected]:
            equal += 1
            continue
        usable.append(RowPair(chosen, rejected, hold_out_keys(pair)))
    if not usable:
        raise DataUnusable(f"none of {len(pairs)} pairs has two different answers that fit and can be learnt from")
    return PairRows(usable, equal, len(pairs) - len(usable) - equal)


def rows_by_key(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each conversation, by the id that it was given."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.trajectory_id, []).append(row)
    return grouped


def hold_out_keys(pair: PairRow) -> tuple[str, ...]:
    """Names of the group, the prompt and both tries.

    One try is in many pairs, with a prompt as long as it has in common with the other side. Instructions alone are no
    prompt: every task of a role has the same.
    """
    keys = [] if pair.group_key is None else [f"group:{pair.group_key}"]
    if any(message["role"] != "system" for message in pair.prompt):
        keys.append(f"prompt:{msgspec.json.encode(pair.prompt, order='sorted').decode()}")
    tries = (pair.chosen_trajectory_id, pair.rejected_trajectory_id)
    keys += [f"trajectory:{tried}" for tried in tries if tried is not None]
    return tuple(keys) or (f"pair:{pair.preference_id}",)


def split(keys: Sequence[Sequence[Hashable]], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """(indices to learn from, indices held out), both in order.

    `keys` has the names (prompt, group) of each example; examples that share one, directly or through others, are not
    separated. Groups are taken in an order drawn from `seed` while they fit into the requested number. Splits of
    files part by prompt alone: they know neither tasks nor tries.
    """
    groups = connected(keys)
    order = sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group[0]}".encode()).digest())
    size = round(fraction * len(keys))
    held: list[int] = []
    for group in order:
        if len(held) + len(group) <= size:
            held += group
    kept = set(held)
    return [index for index in range(len(keys)) if index not in kept], sorted(held)


def split_pairs(chats: ChatRows, pairs: Sequence[PairRow], spec: JobSpec) -> tuple[PairRows, list[int], list[int]]:
    """Rows of all usable pairs, and which of them learn and which are held out. Raises `DataUnusable`."""
    count = len(pairs) - spec.loop.held_out
    made = pair_rows(chats, pairs[:count])
    if not spec.loop.held_out:
        learn, held = split([pair.keys for pair in made.pairs], spec.holdout, spec.config.hyperparameters.seed or 0)
        check_split(spec.holdout, learn, held)
        return made, learn, held
    apart = pair_rows(chats, pairs[count:])
    both = PairRows([*made.pairs, *apart.pairs], made.equal + apart.equal, made.unusable + apart.unusable)
    places = list(range(len(both.pairs)))
    return both, places[: len(made.pairs)], places[len(made.pairs) :]


def check_split(holdout: float, learn: Sequence[int], held: Sequence[int], what: str = "pairs") -> None:
    """Raise `DataUnusable` when a hold-out of that fraction leaves nothing to learn from, or holds nothing out."""
    if problem := split_problem(holdout, len(learn), len(held), what):
        raise DataUnusable(problem)


def scores_of(results: EvaluationResults | None) -> Mapping[str, float]:
    """The scores of an evaluation; none without one."""
    return {} if results is None else results.benchmark_scores or {}


def shares(pairs: Sequence[HasKeys], won_P: Tensor) -> list[float]:
    """The mean of `won` over the pairs of each task. Tasks are what is drawn: pairs of one task share tries, so that an
    interval over pairs would take a few tasks for many.
    """
    return [float(won_P[own].mean()) for own in connected([pair.keys for pair in pairs])]


def improvement(before: Sequence[float], after: Sequence[float]) -> tuple[float, dict[str, float]]:
    """An accuracy less the one that it is compared with, from `shares` of the same pairs, and its 95 % interval."""
    low, high = paired_difference(before, after)
    return statistics.fmean(after) - statistics.fmean(before), {"improvement_low": low, "improvement_high": high}


def won(margins: Tensor) -> Tensor:
    """Of each margin whether it is above 0: 1, 0, or one half for a tie."""
    return (margins > 0).float() + 0.5 * (margins == 0).float()


def connected(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Groups of indices that share a key, directly or through others; each in order, by their first index."""
    root = list(range(len(keys)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    first: dict[Hashable, int] = {}
    for index, names in enumerate(keys):
        for name in names:
            one, other = find(first.setdefault(name, index)), find(index)
            root[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for index in range(len(keys)):
        groups.setdefault(find(index), []).append(index)
    return list(groups.values())
