"""Done cheaply and fast: 10 x success - .1 x cost - .01 x latency + .1 x sub-tasks.

The terms are scaled and bounded so that success always beats failure: cost in tenths of a US dollar (at most 10),
latency in units of 6 s (at most 100), successful sub-tasks (at most 10). A failure is then worth -2 .. 1, a success
8 .. 11.
"""

from __future__ import annotations

COST_UNIT_USD, MAX_COST = 0.1, 10.0
LATENCY_UNIT_S, MAX_LATENCY = 6.0, 100.0
MAX_SUBTASKS = 10
WORST, BEST = -2.0, 11.0


def scaled_cost(usd: float) -> float:
    """In tenths of a US dollar, at most `MAX_COST`."""
    return min(MAX_COST, usd / COST_UNIT_USD)


def scaled_latency(seconds: float) -> float:
    """In units of 6 s, at most `MAX_LATENCY`; a clock that went back counts as no time."""
    return min(MAX_LATENCY, max(0.0, seconds) / LATENCY_UNIT_S)


def value_of(success: bool, cost_usd: float, seconds: float, subtasks: int) -> float:
    """From `WORST` to `BEST`; `subtasks`: those that succeeded."""
    expense = 0.1 * scaled_cost(cost_usd) + 0.01 * scaled_latency(seconds)
    return 10.0 * success - expense + 0.1 * min(MAX_SUBTASKS, subtasks)
