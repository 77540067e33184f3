"""How many waiting requests join the running batch."""

from __future__ import annotations

from collections.abc import Sequence


def admissible(new_tokens: Sequence[int], free_rows: int, budget: int) -> int:
    """How many of the first requests are computed together, padded to the longest, within `budget` tokens.

    `new_tokens` are the prompt tokens still to compute, in order of arrival. At least one whenever a row is free,
    so that a prompt longer than the budget is not stuck.
    """
    width = 0
    for count, tokens in enumerate(new_tokens[:free_rows]):
        width = max(width, tokens)
        if count and width * (count + 1) > budget:
            return count
    return min(len(new_tokens), free_rows)
