"""Which rows go through the model together: few passes, little padding, shared beginnings run once, bounded memory.

An item is what must not be torn apart: a row, or all rows of a preference pair. The cost of a pass is counted in
tokens: those that are computed, padding included, and what every pass costs besides.

Rows are not packed into one: on a CPU 0 to 7.4 % of a step is padding, and packed rows, kept apart by a dense mask,
took 1.03 to 2.7 times as long (`python -m tests.bench.bench_packing`). On a GPU, kernels for rows of different
lengths could win 12 to 31 %, an estimate; that is when to open it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ratchet.core.datasets.domain.sequences import common
from ratchet.trainer_worker.training.learner.rows import Ids, Row

MIN_SHARED_PREFIX = 16
"""Tokens that rows must have in common before they count as having the same beginning."""
MAX_ROWS = 256
"""In a pass. More fill no processor better."""


@dataclass(frozen=True, slots=True)
class Item:
    """What goes through the model in one pass."""

    beginning: Ids
    """Tokens that its rows have in common and whose hidden states predict nothing that learns."""
    width: int
    """Tokens of its longest row."""
    rows: int


def item_of(rows: Sequence[Row]) -> Item:
    """The item that `rows` are."""
    # The position before the first trained token must stay outside: its hidden state is needed.
    beginnings = [row.token_ids[: max(0, int(row.trained_at[0]) - 1)] for row in rows]
    shared = min(common(beginnings[0], other) for other in beginnings)
    return Item(beginnings[0][:shared], max(row.length for row in rows), len(rows))


def run_once(shared: int, rows: int, overhead: int) -> int:
    """How many of `shared` common leading tokens are run once for all `rows`: 0 where that saves less than it costs."""
    return shared if shared >= MIN_SHARED_PREFIX and (rows - 1) * shared > overhead else 0


def computed(items: Sequence[Item], overhead: int, *, share: bool) -> int:
    """Tokens that a pass with all of `items` computes, padding included."""
    rows, width = sum(item.rows for item in items), max(item.width for item in items)
    shared = min(common(items[0].beginning, item.beginning) for item in items) if share else 0
    once = run_once(shared, rows, overhead)
    return once + rows * (width - once)


def plan_passes(items: Sequence[Item], *, budget: int, overhead: int, share: bool) -> list[list[int]]:
    """Indices of `items`, pass by pass: the cheapest cuts of the better one of two orders.

    Ordered by length little is padding; with items of one beginning side by side that is run once. No pass computes
    more than `budget` tokens, unless it is a single item that does. `overhead`: cost of a pass besides its tokens.
    """
    if not items:
        return []
    by_length = sorted(range(len(items)), key=lambda index: items[index].width)
    orders = [by_length, _by_beginning(items)] if share else [by_length]
    cuts = [_cheapest_cuts(items, order, budget, overhead, share=share) for order in orders]
    return min(cuts, key=lambda cut: cut[0])[1]


def _by_beginning(items: Sequence[Item]) -> list[int]:
    """Items with much of their beginning in common side by side, by length; what stands alone last, by length."""
    # Bytes of big-endian ids have the order of the ids.
    order = sorted(range(len(items)), key=lambda index: items[index].beginning.astype(">i4").tobytes())
    links = [common(items[a].beginning, items[b].beginning) for a, b in pairwise(order)]
    everywhere = min(links, default=0)
    families = [[order[0]]]
    for index, link in zip(order[1:], links, strict=True):
        if link >= everywhere + MIN_SHARED_PREFIX:
            families[-1].append(index)
        else:
            families.append([index])
    families.sort(key=lambda family: (len(family) == 1, max(items[index].width for index in family)))
    return [index for family in families for index in sorted(family, key=lambda index: items[index].width)]


def _cheapest_cuts(
    items: Sequence[Item], order: Sequence[int], budget: int, overhead: int, *, share: bool
) -> tuple[int, list[list[int]]]:
    """Cost of `order` cut into passes, and the passes: the shortest path over all cuts."""
    # Neighbours suffice: what all items have in common is the least that two neighbours have in common.
    own = [items[index] for index in order]
    links = [common(a.beginning, b.beginning) for a, b in pairwise(own)] if share else []
    best, begin_of = [0], [0]
    for end in range(1, len(own) + 1):
        rows = width = 0
        shared = len(own[end - 1].beginning) if share else 0
        cheapest, at = None, end - 1
        for begin in range(end - 1, -1, -1):
            if share and begin < end - 1:
                shared = min(shared, links[begin])
            rows, width = rows + own[begin].rows, max(width, own[begin].width)
            if begin < end - 1 and (shared + rows * (width - shared) > budget or rows > MAX_ROWS):
                break
            once = run_once(shared, rows, overhead)
            tokens = once + rows * (width - once)
            if begin < end - 1 and tokens > budget:
                continue
            cost = best[begin] + tokens + overhead * (2 if once else 1)
            if cheapest is None or cost < cheapest:
                cheapest, at = cost, begin
        best.append(cheapest or 0)
        begin_of.append(at)
    passes: list[list[int]] = []
    end = len(own)
    while end:
        passes.append(list(order[begin_of[end] : end]))
        end = begin_of[end]
    return best[-1], passes[::-1]
