"""A reward per turn whose sum is the reward of the trajectory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.contract.reward import TurnReward
from ratchet.contract.trajectory import TrajectoryTurn


def turn_rewards(turns: Sequence[TrajectoryTurn], total: float) -> list[TurnReward]:
    """Dense rewards that sum to `total` (to rounding).

    Where the environment gave rewards of its own (`turns[].reward`) they stand, and the last turn takes what is missing
    to the total, as a final reward does. Else the turns that worked (`result.success`) share the total equally; all
    turns do when none worked.
    """
    if any(turn.reward is not None for turn in turns):
        shares = [turn.reward or 0.0 for turn in turns]
    else:
        worked = [turn.result.success for turn in turns]
        paid = worked if any(worked) else [True] * len(turns)
        shares = [total / sum(paid) if is_paid else 0.0 for is_paid in paid]
    shares[-1] += total - math.fsum(shares)
    return [TurnReward(turn_id=turn.turn_id, reward=share) for turn, share in zip(turns, shares, strict=True)]
