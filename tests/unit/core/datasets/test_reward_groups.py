"""Tasks by what an algorithm that compares tries can learn from them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ratchet.core.contract.snapshot import RewardGroups
from ratchet.core.datasets.domain.reward_groups import RewardTally


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.5, 1.0]))), st.integers(0, 20))
def test_a_group_is_mixed_where_two_of_its_tries_differ(tries: list[tuple[str, float]], first: int) -> None:
    rewards = {task: [reward for key, reward in tries if key == task] for task, _ in tries}
    several = [group for group in rewards.values() if len(group) > 1]
    tally = RewardTally()
    tally.update(tries[:first])
    tally.update(tries[first:])
    assert tally.counts() == RewardGroups(
        groups=len(several),
        mixed_groups=sum(len(set(group)) > 1 for group in several),
        singletons=len(rewards) - len(several),
    )
