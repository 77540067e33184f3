"""Preference pairs as rows, which of them are held out, and what a held-out count can show.

Only what the assistant says after a pair's prompt learns. What shares a prompt or a group is never separated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.chat_templates.conversations import Conversation
from ratchet.contract.snapshot import PairRow
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.learner.rows import Row

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


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


def pair_rows(chats: ChatRows, pairs: Sequence[PairRow]) -> PairRows:
    """Rows of every usable pair, in order. Raises `DataUnusable` when there is none."""
    whole = [
        Conversation(f"{index}{name}", [*pair.prompt, *side], pair.tools, learn_from=len(pair.prompt))
        for index, pair in enumerate(pairs)
        for name, side in (("+", pair.chosen), ("-", pair.rejected))
    ]
    rows = rows_by_key(chats.rows(whole))
    usable: list[RowPair] = []
    equal = 0
    for index, pair in enumerate(pairs):
        chosen, rejected = rows.get(f"{index}+"), rows.get(f"{index}-")
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
    keys += [f"trajectory:{one}" for one in tries if one is not None]
    return tuple(keys) or (f"pair:{pair.preference_id}",)


def split(keys: Sequence[Sequence[Hashable]], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """(indices to learn from, indices held out), both in order.

    `keys` has the names (prompt, group) of each example; examples that share one, directly or through others, are not
    separated. Groups are taken in an order drawn from `seed` while they fit into the requested number.
    """
    groups = _connected(keys)
    order = sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group[0]}".encode()).digest())
    size = round(fraction * len(keys))
    held: list[int] = []
    for group in order:
        if len(held) + len(group) <= size:
            held += group
    kept = set(held)
    return [index for index in range(len(keys)) if index not in kept], sorted(held)


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927). `successes` may count a tie as one half."""
    share = successes / trials
    denominator = 1 + Z95**2 / trials
    centre = (share + Z95**2 / (2 * trials)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / trials + Z95**2 / (4 * trials**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def _connected(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Groups of indices that share a key, each in order, by their first index."""
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
